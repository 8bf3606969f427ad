"""Fisher: the mean over examples of the squared gradient of each one's own loss.

The diagonal of the empirical Fisher information, of single weights; of heads and neurons, that of their
gates. Squares of the gradients of whole batches are something else, and change with the batches: `batch`.

batch   examples of heads, neurons and layers whose gradient is taken together, as Kwon et al. 2022 do
"""

from collections.abc import Sequence

import torch
from torch import nn

from ..architectures.site import AnySite, Site, WeightSite
from ..architectures.sites import STACKED
from ..architectures.stack import StackSite
from ..core.errors import InvalidValueError
from ..engine.gate_gradients import batch_gradients, gate_gradients
from ..engine.weight_gradients import squared_gradients
from . import Batches, Scores, criterion


@criterion(
    "heads",
    "neurons",
    "slots",
    *STACKED,
    "weights",
    rescored=True,
    needs_data=True,
    needs_labels=True,
    unit="squared gradient",
)
def fisher(model: nn.Module, sites: Sequence[AnySite], batches: Batches, *, batch: int = 1) -> Scores:
    matrices = [site for site in sites if isinstance(site, WeightSite)]
    units = [site for site in sites if isinstance(site, (Site, StackSite))]
    if matrices and batch != 1:
        raise InvalidValueError("`batch` is for gates of units; single weights take every example", "batch")
    scores = Scores(squared_gradients(model, matrices, batches, "fisher") if matrices else ())
    if units and batch != 1:
        found = batch_gradients(model, units, batches, batch)
        scores.update({name: grads.square().mean(0) for name, grads in found.items()})
    elif units:
        scores.update(gate_gradients(model, units, batches, torch.square))
    return scores
