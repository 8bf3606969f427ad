"""Alternate: every other layer, from the last one down, then those between (https://arxiv.org/abs/2004.03844).

It looks at neither weights nor data: the baseline for methods that choose layers. Of six layers the last, the
fourth and the second are removed first.

keep_last   begin with the layer before the last
"""

from collections.abc import Sequence

import torch
from torch import nn

from ..architectures.stack import StackSite
from . import Batches, Scores, criterion


@criterion("layers", idle="any", unit="place in the order, as a fraction")
def alternate(
    model: nn.Module, sites: Sequence[StackSite], batches: Batches, *, keep_last: bool = False
) -> Scores:
    def score(units: int) -> torch.Tensor:
        last = torch.arange(units).flip(0)  # how many layers are above each
        later = (last + keep_last) % 2
        order = (later * units + last).argsort().argsort()
        return order.double() / max(1, units)

    return Scores({site.name: score(site.units) for site in sites})
