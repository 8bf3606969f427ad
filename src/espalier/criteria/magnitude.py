"""Magnitude: |w| of a single weight, the sum of the squares of a unit's weights; no data, no gradients.

order   p of Σ|w|ᵖ: 1 for single weights and 2 for units, unless you say another. Of single weights the order
        is the same whatever it is.
"""

from ..core.errors import EspalierError
from . import Scores, criterion


@criterion("heads", "neurons", "weights")
def magnitude(model, sites, batches, *, order: float | None = None) -> Scores:  # type: ignore[no-untyped-def]
    if order is not None and order <= 0:
        raise EspalierError(f"the order of a norm is above zero; got {order!r}")
    scores = Scores()
    for site in sites:
        power = order or (1 if site.target == "weights" else 2)
        scores[site.name] = site.fold(lambda w, _, p=power: w.abs() ** p)
    return scores
