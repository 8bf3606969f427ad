"""The gradient of the loss by a gate on each unit, example by example, from one sweep over activations.

A gate multiplies what its unit's writer reads, x, so that its gradient is the sum of x·∂loss/∂x over the
unit's channels and the example's tokens: no gate is needed to know it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batches import Batches, examples_in
from .backward import Calls, sweep


def gate_gradients(
    model: nn.Module, sites: Sequence[Any], batches: Batches, each: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """{site: the mean over examples of `each`(gradient)}, in float64; the loss is a mean over examples."""
    writers = [site.module("write") for site in sites]

    def value(out: Any, batch: Mapping[str, Any]) -> Tensor:
        # The loss is a mean over the batch: times its size, each row is one example's own gradient.
        return batches.loss(out, batch) * examples_in(batch)

    def one(group: Sequence[int]) -> Tensor:
        """[units of all sites]: the sum over the examples of a group."""
        found = []
        for number in group:
            seen = sweep(model, sites, writers, batches, number, value, side="input")
            size = examples_in(batches[number])
            grads = torch.cat([_by_example(site, seen, size) for site in sites], 1)
            found.append(each(grads).sum(0))
        return torch.stack(found).sum(0)

    mean = batches.each(one).sum(0) / batches.examples
    return dict(zip([s.name for s in sites], mean.split([s.units for s in sites])))


def _by_example(site: Any, seen: Calls, size: int) -> Tensor:
    """[examples, units]"""
    total = torch.zeros(size, site.units, dtype=torch.float64)
    for x, grad in seen[site.module("write")]:
        product = x.double() * grad.double()
        if product.dim() == 2:  # [batch * tokens, channels] in OPT
            product = product.unflatten(0, (size, -1))
        total += product.sum(1).cpu()[:, site.index("write")].sum(2)
    return total
