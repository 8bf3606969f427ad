"""SNIP: |g·w| of the mean loss, as a share of their sum (https://arxiv.org/abs/1810.02340).

g·w is the gradient of a gate on the weight, so this is `taylor` for single weights. One sweep of summed
gradients.

signed   −g·w as a share of the same sum: what removing the weight does to the loss, to first order, so that a
         weight that does harm is removed first
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..architectures.site import WeightSite
from ..engine.weight_gradients import add_gradients
from . import Batches, Scores, criterion


@criterion(
    "weights", rescored=True, needs_data=True, needs_labels=True, unit="share of the change of the loss"
)
def snip(model: nn.Module, sites: Sequence[WeightSite], batches: Batches, *, signed: bool = False) -> Scores:
    add_gradients(model, sites, batches, "snip")

    def change(weight: Tensor, gradient: Tensor | None) -> Tensor:
        return torch.zeros_like(weight) if gradient is None else -(gradient * weight)

    changes = {site.name: site.fold(change) for site in sites}
    total = sum(value.abs().double().sum().item() for value in changes.values()) or 1.0
    return Scores({name: (c if signed else c.abs_()).div_(total) for name, c in changes.items()})
