"""The same work on BERT-base written by hand, without either tool, for comparison."""

import torch
from torch import nn

from .models import BERT, ending


def by_gradients(model, batches):
    """Score by gate gradients and slice."""
    slice_heads(model, best_half(gate_gradients(model, batches)))


def by_magnitude(model, _):
    """Score by squared weights and slice."""
    slice_heads(model, best_half(squared_weights(model)))


def every_other(model, _):
    """Slice out every other head."""
    slice_heads(model, torch.arange(12).expand(12, 12) % 2 == 0)


def forward(model, batches):
    """Run the model without gradients."""
    with torch.no_grad():
        for batch in batches:
            model(**batch)


def forward_and_backward(model, batches):
    """Compute the gradients of all weights."""
    for batch in batches:
        model(**batch).loss.backward()


def gate_gradients(model, batches):
    """Return [layers, heads]: |∂loss/∂gate| (Michel et al. 2019), a gate before each output projection."""
    model.requires_grad_(False)
    heads = model.config.num_attention_heads
    size = model.config.hidden_size // heads
    writers = ending(model, BERT[-1])
    gates = torch.ones(len(writers), heads, requires_grad=True)
    handles = [
        writer.register_forward_pre_hook(lambda _, args, i=i: (args[0] * gates[i].repeat_interleave(size),))
        for i, writer in enumerate(writers)
    ]
    total = torch.zeros_like(gates)
    for batch in batches:
        (gradient,) = torch.autograd.grad(model(**batch).loss, gates)
        total += gradient.abs()
    for handle in handles:
        handle.remove()
    return total


@torch.no_grad()
def squared_weights(model):
    """Return [layers, heads]: the sum of the squares of each head's weights."""
    out = []
    for *reads, write in layers(model):
        rows = sum(module.weight.square().sum(1) for module in reads)  # [heads × head size]
        total = rows + write.weight.square().sum(0)
        out.append(total.view(model.config.num_attention_heads, -1).sum(1))
    return torch.stack(out)


def best_half(scores):
    """Return [layers, heads]: the half of the model's heads with the highest scores."""
    keep = torch.zeros(scores.numel(), dtype=torch.bool)
    keep[scores.flatten().argsort(descending=True)[: scores.numel() // 2]] = True
    return keep.view_as(scores)


@torch.no_grad()
def slice_heads(model, keep):
    """Keep some heads, [layers, heads], by slicing q, k, v and the output projection."""
    size = model.config.hidden_size // model.config.num_attention_heads
    for (*reads, write), kept in zip(layers(model), keep):
        index = kept.repeat_interleave(size).nonzero().flatten()
        for module in reads:
            module.weight = nn.Parameter(module.weight[index])
            module.bias = nn.Parameter(module.bias[index])
            module.out_features = len(index)
        write.weight = nn.Parameter(write.weight[:, index])
        write.in_features = len(index)


def layers(model):
    """Return q, k, v and the output projection of each layer."""
    return zip(*(ending(model, end) for end in BERT))
