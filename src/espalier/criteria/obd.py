"""OBD: ½·h·w², the rise of the loss when a weight of a trained model is removed, h being Fisher's diagonal.

Of the second-order change −g·w + ½·h·w² the first term is nil where training has ended (LeCun et al. 1990).
"""

from collections.abc import Sequence

from torch import nn

from ..architectures.site import WeightSite
from ..engine.weight_gradients import squared_gradients
from . import Batches, Scores, criterion


@criterion("weights", rescored=True, needs_data=True, needs_labels=True, unit="change of the loss")
def obd(model: nn.Module, sites: Sequence[WeightSite], batches: Batches) -> Scores:
    curvature = squared_gradients(model, sites, batches, "obd")
    return Scores({s.name: s.fold(lambda w, _: w.square()) * (curvature[s.name] / 2) for s in sites})
