"""Magnitude: the sum of the squares of a unit's weights; no data, no gradients."""

from . import Scores, criterion


@criterion("heads", "neurons", "weights")
def magnitude(model, sites, batches) -> Scores:  # type: ignore[no-untyped-def]
    return Scores({site.name: site.fold(lambda w, _: w.square()) for site in sites})
