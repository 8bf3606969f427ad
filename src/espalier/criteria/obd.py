"""OBD: ½·h·w², the rise of the loss when a weight of a trained model goes, with Fisher's diagonal as h.

Of the second-order change −g·w + ½·h·w² the first term is nil where training has ended (LeCun et al. 1990).
"""

from ..engine.weight_gradients import squared_gradients
from . import Scores, criterion


@criterion("weights", rescored=True)
def obd(model, sites, batches) -> Scores:  # type: ignore[no-untyped-def]
    curvature = squared_gradients(model, sites, batches, "obd")
    return Scores({s.name: s.fold(lambda w, _, h=curvature[s.name]: w.square() * (h / 2)) for s in sites})
