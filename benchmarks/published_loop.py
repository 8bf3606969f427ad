"""The published Greedy-Gnorm loop, acted out from an account of what it does: sweep by sweep, head by head.

For each layer the data is swept once; every sweep computes the gradient of every weight, embeddings included;
accuracy is measured one sentence at a time. Only the last step, the product, is done in float64 and not in
float32, where it underflows. Nothing of espalier is used.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn


class Patient:
    """A BERT, RoBERTa or ALBERT that loses heads one by one, by slicing; a mask [layers, heads] remembers."""

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
        """The query, key and value layers of a block."""
        attention = self.blocks[layer].attention
        attention = attention if self.shared else attention.self
        return [attention.query, attention.key, attention.value]

    def remove(self, layer: int, head: int) -> None:
        """Rows out of Q, K and V, columns out of the output; its bias stays."""
        row = self.mask[layer].tolist()
        assert row[head] == 1
        first = self.size * sum(row[:head])  # where the head now starts: those before it may be gone
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
        """What is left of attention that has no head: a bias, the residual and the norm."""
        end = attention if self.shared else attention.output

        def forward(hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
            return end.LayerNorm(hidden_states + end.dense.bias), None

        return forward

    def expanded(self, gradient: Tensor, row: Tensor) -> Tensor:
        """[kept heads × size, width] -> [all heads, size, width], zeros where a head is gone."""
        whole = torch.zeros(len(row), self.size, self.width)
        whole[row.bool()] = gradient.view(-1, self.size, self.width)
        return whole


def sweep(patient: Patient, batches: list[dict[str, Tensor]], layers: range) -> Tensor:
    """[roles, layers, heads]: the norms of some layers' gradients, summed over the batches of one sweep."""
    norms = torch.zeros(3, *patient.mask.shape, dtype=torch.float64)
    for batch in batches:
        value = torch.norm(patient.model(**batch).logits)
        patient.model.zero_grad()
        value.backward()
        for layer in layers:
            row = patient.mask[layer]
            for role, linear in enumerate(patient.projections(layer)):
                gradient = linear.weight.grad
                if gradient is None:  # a block without heads has nothing to differentiate
                    gradient = torch.zeros(0, patient.width)
                norms[role, layer] += patient.expanded(gradient, row).double().norm(dim=(1, 2))
    return norms


def products(patient: Patient, batches: list[dict[str, Tensor]], texts_in_split: int) -> Tensor:
    """S [layers, heads]: the data is swept once for every layer, and every gradient computed every time."""
    layers = range(len(patient.blocks))
    norms = sum(sweep(patient, batches, range(layer, layer + 1)) for layer in layers)
    return (norms / texts_in_split).prod(0)


def standard(s: Tensor) -> Tensor:
    return (s - s.mean()) / s.std()


def picked(selection: Tensor, mask: Tensor) -> tuple[int, int]:
    """The place of the highest number; if all are zero, of the first head that is left."""
    if (selection == 0).all() and mask.any():
        return divmod(int(mask.flatten().nonzero()[0]), mask.shape[1])
    return divmod(int(selection.argmax()), mask.shape[1])


def low_first(z: Tensor, mask: Tensor) -> tuple[int, int]:
    return picked(mask * (z.max() - z), mask)


def high_first(z: Tensor, mask: Tensor) -> tuple[int, int]:
    return picked(mask * z, mask)


def accuracy(patient: Patient, sentences: list[dict[str, Tensor]], labels: list[int]) -> float:
    """One sentence at a time, autograd left on."""
    right = 0
    for sentence, label in zip(sentences, labels):
        right += int(patient.model(**sentence).logits.argmax(-1)) == label
    return right / len(labels)
