"""Taylor: |∂loss/∂gate| of each example, averaged (Michel et al. 2019, https://arxiv.org/abs/1905.10650).

The gate is [batch, units], so one backward pass gives every example its own gradient and the score does
not depend on how examples are put into batches, provided that the loss is the mean over examples of each
one's own, as a classifier's is. A language model's is a mean over tokens; if examples have different numbers
of them, give `Batches` a loss that averages by example. No gradient of a weight is computed.

signed   the mean of −∂loss/∂gate instead. To remove a unit is to move its gate from 1 to 0, which changes the
         loss by about −∂loss/∂gate: high where the loss would rise, below zero where it would fall, so that
         a unit that does harm goes first. Without it a unit counts by how much it does, good or bad.
"""

import torch

from ..core import rows
from ..errors import EspalierError
from ..sweep import sweep
from . import Scores, criterion


@criterion("heads", "neurons", rescored=True)
def taylor(model, sites, batches, *, signed: bool = False) -> Scores:  # type: ignore[no-untyped-def]
    if not batches:
        raise EspalierError("taylor needs calibration data: give it some batches")
    writers = [site.module("write") for site in sites]

    def one(group):  # type: ignore[no-untyped-def]
        """[units of all sites]: the sum over the examples of a group."""
        found = []
        for number in group:
            size = rows(batches[number])
            seen = sweep(model, sites, writers, batches, number, value, side="input")
            found.append(torch.cat([_by_gate(site, seen, size, signed) for site in sites]))
        return torch.stack(found).sum(0)

    def value(out, batch):  # type: ignore[no-untyped-def]
        # The loss is a mean over the batch: times its size, each row is one example's own gradient.
        return batches.loss(out, batch) * rows(batch)

    mean = batches.each(one).sum(0) / batches.examples
    return Scores(zip([s.name for s in sites], mean.split([s.units for s in sites])))


def _by_gate(site, seen, size: int, signed: bool):  # type: ignore[no-untyped-def]
    """[units]: a gate multiplies what the writer reads, so its gradient is the sum of x·∂loss/∂x."""
    total = torch.zeros(size, site.units, dtype=torch.float64)
    for x, grad in seen[site.module("write")]:
        product = x.double() * grad.double()
        if product.dim() == 2:  # [batch * tokens, channels] in OPT
            product = product.unflatten(0, (size, -1))
        total += product.sum(1).cpu()[:, site.index("write")].sum(2)
    return (-total if signed else total.abs()).sum(0)
