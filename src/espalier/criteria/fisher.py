"""Fisher: the mean over examples of the squared gradient of each one's own loss.

The diagonal of the empirical Fisher information, of single weights; of heads and neurons, that of their
gates. Squares of the gradients of whole batches would be something else, and would change with the batches.
"""

from collections.abc import Sequence

import torch
from torch import nn

from ..architectures.site import AnySite, Site, WeightSite
from ..architectures.sites import STACKED
from ..architectures.stack import StackSite
from ..engine.gate_gradients import gate_gradients
from ..engine.weight_gradients import squared_gradients
from . import Batches, Scores, criterion


@criterion(
    "heads", "neurons", "slots", *STACKED, "weights", rescored=True, needs_data=True, unit="squared gradient"
)
def fisher(model: nn.Module, sites: Sequence[AnySite], batches: Batches) -> Scores:
    matrices = [site for site in sites if isinstance(site, WeightSite)]
    units = [site for site in sites if isinstance(site, (Site, StackSite))]
    scores = Scores(squared_gradients(model, matrices, batches, "fisher") if matrices else ())
    if units:
        scores.update(gate_gradients(model, units, batches, torch.square))
    return scores
