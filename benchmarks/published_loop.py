"""The published Greedy-Gnorm loop, written again from a description of it: sweep by sweep, head by head.

For each layer the data is swept once; every sweep computes the gradient of every weight, embeddings included;
accuracy is measured one sentence at a time. Only the last step, the product, is done in float64 and not in
float32, where it underflows. Nothing of espalier is used.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn


class SlicedModel:
    """A copy of a BERT, RoBERTa or ALBERT whose heads are sliced out; `mask` [layers, heads] is 1 if kept."""

    def __init__(self, model: nn.Module):
        self.model = deepcopy(model)
        config = self.model.config
        self.shared = config.model_type == "albert"
        body = self.model.base_model.encoder
        self.blocks = body.albert_layer_groups[0].albert_layers if self.shared else body.layer
        self.heads, self.width = config.num_attention_heads, config.hidden_size
        self.size = self.width // self.heads
        self.mask = torch.ones(len(self.blocks), self.heads, dtype=torch.int64)

    def projections(self, layer: int) -> list[Any]:
        """Return the query, key and value layers of a block."""
        attention = self.blocks[layer].attention
        attention = attention if self.shared else attention.self
        return [attention.query, attention.key, attention.value]

    def remove(self, layer: int, head: int) -> None:
        """Remove a head: its rows of Q, K and V and its columns of the output projection; the bias stays."""
        row = self.mask[layer].tolist()
        assert row[head] == 1
        first = self.size * sum(row[:head])  # where the head starts now: some before it may be removed
        inside = torch.arange(self.size * sum(row))
        rest = inside[(inside < first) | (inside >= first + self.size)]
        for linear in self.projections(layer):
            linear.weight = nn.Parameter(linear.weight.detach()[rest])
            linear.bias = nn.Parameter(linear.bias.detach()[rest])
        attention = self.blocks[layer].attention
        dense = attention.dense if self.shared else attention.output.dense
        dense.weight = nn.Parameter(dense.weight.detach()[:, rest])
        self.mask[layer, head] = 0
        if not self.mask[layer].any():  # transformers cannot reshape nothing into heads
            attention.forward = self.without_heads(attention)

    def without_heads(self, attention: Any) -> Any:
        """Return the forward of attention without heads: the output bias, the residual and the norm."""
        end = attention if self.shared else attention.output

        def forward(hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
            return end.LayerNorm(hidden_states + end.dense.bias), None

        return forward

    def expanded(self, gradient: Tensor, row: Tensor) -> Tensor:
        """[kept heads × size, width] -> [all heads, size, width], with zeros for removed heads."""
        full = torch.zeros(len(row), self.size, self.width)
        full[row.bool()] = gradient.view(-1, self.size, self.width)
        return full


def sweep(sliced: SlicedModel, batches: list[dict[str, Tensor]], layers: range) -> Tensor:
    """Return the norms of some layers' gradients, [roles, layers, heads], summed over one sweep."""
    norms = torch.zeros(3, *sliced.mask.shape, dtype=torch.float64)
    for batch in batches:
        value = torch.norm(sliced.model(**batch).logits)
        sliced.model.zero_grad()
        value.backward()
        for layer in layers:
            row = sliced.mask[layer]
            for role, linear in enumerate(sliced.projections(layer)):
                gradient = linear.weight.grad
                if gradient is None:  # a block without heads has nothing to differentiate
                    gradient = torch.zeros(0, sliced.width)
                norms[role, layer] += sliced.expanded(gradient, row).double().norm(dim=(1, 2))
    return norms


def products(sliced: SlicedModel, batches: list[dict[str, Tensor]], texts_in_split: int) -> Tensor:
    """Return S [layers, heads]: one sweep per layer, and every gradient computed in each of them."""
    layers = range(len(sliced.blocks))
    norms = sum(sweep(sliced, batches, range(layer, layer + 1)) for layer in layers)
    return (norms / texts_in_split).prod(0)


def standard(s: Tensor) -> Tensor:
    """Return z-scores over all heads."""
    return (s - s.mean()) / s.std()


def picked(selection: Tensor, mask: Tensor) -> tuple[int, int]:
    """Return (layer, head) of the highest number; if all are zero, the first head that is kept."""
    if (selection == 0).all() and mask.any():
        return divmod(int(mask.flatten().nonzero()[0]), mask.shape[1])
    return divmod(int(selection.argmax()), mask.shape[1])


def low_first(z: Tensor, mask: Tensor) -> tuple[int, int]:
    """Return the kept head with the lowest score."""
    return picked(mask * (z.max() - z), mask)


def high_first(z: Tensor, mask: Tensor) -> tuple[int, int]:
    """Return the head with the highest score."""
    return picked(mask * z, mask)


def accuracy(sliced: SlicedModel, sentences: list[dict[str, Tensor]], labels: list[int]) -> float:
    """Return the accuracy, one sentence at a time and with autograd on, as published."""
    right = 0
    for sentence, label in zip(sentences, labels):
        right += int(sliced.model(**sentence).logits.argmax(-1)) == label
    return right / len(labels)
