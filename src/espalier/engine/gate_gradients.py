"""The gradient of the loss by a gate on each unit, example by example, from one pass over activations.

A gate multiplies what its unit's writer reads, x, so that its gradient is the sum of x·∂loss/∂x over the
unit's channels and the example's tokens: it can be computed without a gate.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import Site
from ..core.batches import Batch, Batches, examples_in
from .backward import Calls, run_backward


def gate_gradients(
    model: nn.Module,
    sites: Sequence[Site],
    batches: Batches,
    each: Callable[[Tensor], Tensor],
    maps: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return {site: mean over examples of `each`(gradient)}, in float64; the loss is a mean over examples.

    With `maps`, [channels, channels] by site, a gate multiplies only that image of what the writer reads.
    """
    writers = [site.module("write") for site in sites]

    def summed_loss(out: Any, batch: Batch) -> Tensor:
        # The loss is a mean over the batch: times its size, each row is one example's own gradient.
        return batches.loss(out, batch) * examples_in(batch)

    def sum_over(group: Sequence[int]) -> Tensor:
        """Return the sum over the examples of a group, [units of all sites]."""
        found = []
        for number in group:
            seen = run_backward(model, sites, writers, batches, number, summed_loss, side="input")
            size = examples_in(batches[number])
            grads = torch.cat(
                [_by_example(site, seen, size, (maps or {}).get(site.name)) for site in sites], 1
            )
            found.append(each(grads).sum(0))
        return torch.stack(found).sum(0)

    mean = batches.map_groups(sum_over).sum(0) / batches.examples
    return dict(zip([s.name for s in sites], mean.split([s.units for s in sites])))


def _by_example(site: Site, seen: Calls, size: int, image: Tensor | None = None) -> Tensor:
    """Return the gate gradients of a site, [examples, units]."""
    total = torch.zeros(size, site.units, dtype=torch.float64)
    for x, grad in seen[site.module("write")]:
        x = x if image is None else x @ image.to(x)
        product = x.double() * grad.double()
        if product.dim() == 2:  # [batch * tokens, channels] in OPT
            product = product.unflatten(0, (size, -1))
        total += product.sum(1).cpu()[:, site.index("write")].sum(2)
    return total
