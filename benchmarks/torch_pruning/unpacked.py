"""GPT-2's packed q, k and v as plain linears, which Torch-Pruning can follow, and packed again."""

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from .models import ending


def unpack(model):
    """Replace the Conv1Ds around attention; return the ends of the names of q, k and v."""
    for attention in ending(model, ".attn"):
        packed, out = attention.c_attn, attention.c_proj
        thirds = zip("qkv", packed.weight.data.chunk(3, 1), packed.bias.data.chunk(3))
        attention.c_attn = Three({letter: linear(w, b) for letter, w, b in thirds})
        attention.c_proj = linear(out.weight.data, out.bias.data)
    return [f"c_attn.{letter}" for letter in "qkv"]


def pack(model):
    """Put transformers' own modules back."""
    for attention in ending(model, ".attn"):
        attention.split_size = attention.c_proj.in_features
        attention.c_attn = conv([attention.c_attn[letter] for letter in "qkv"])
        attention.c_proj = conv([attention.c_proj])


def linear(weight, bias):
    """Return a linear layer with the weight of a Conv1D."""
    made = nn.Linear(*weight.shape)
    made.weight.data, made.bias.data = weight.t().clone(), bias.clone()
    return made


def conv(linears):
    """Return linear layers as one Conv1D."""
    weight = torch.cat([part.weight.data for part in linears]).t().contiguous()
    made = Conv1D(weight.shape[1], weight.shape[0])
    made.weight.data = weight
    made.bias.data = torch.cat([part.bias.data for part in linears])
    return made


class Three(nn.ModuleDict):
    """Three linears with the packed output that GPT-2's attention expects."""

    def forward(self, x):
        return torch.cat([self[letter](x) for letter in "qkv"], -1)
