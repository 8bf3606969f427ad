"""Magnitude: |w| of a single weight, the sum of the squares of a unit's weights; no data, no gradients.

order   p of Σ|w|ᵖ; 1 for single weights and 2 for units if not given. For single weights every order gives
        the same ranking.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from ..architectures.site import AnySite
from ..architectures.sites import STACKED
from ..core.errors import InvalidValueError
from . import Batches, Scores, criterion


@criterion(
    "heads",
    "neurons",
    "slots",
    *STACKED,
    "weights",
    unit="sum of squared weights",
    colour="#CC79A7",
    marker="D",
)
def magnitude(
    model: nn.Module, sites: Sequence[AnySite], batches: Batches, *, order: float | None = None
) -> Scores:
    if order is not None and order <= 0:
        raise InvalidValueError(f"`order` of a norm is above zero; got {order!r}", "order")

    def score(site: AnySite) -> Tensor:
        power = order or (1 if site.target == "weights" else 2)
        return site.fold(lambda w, _: w.abs() ** power)

    return Scores({site.name: score(site) for site in sites})
