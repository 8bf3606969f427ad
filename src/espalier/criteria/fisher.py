"""Fisher: the mean over examples of the squared gradient of each one's own loss.

The diagonal of the empirical Fisher information, of single weights; of heads and neurons, that of their
gates. Squares of the gradients of whole batches would be something else, and would change with the batches.
"""

import torch

from ..core.errors import EspalierError
from ..engine.gate_gradients import gate_gradients
from ..engine.weight_gradients import squared_gradients
from . import Scores, criterion


@criterion("heads", "neurons", "weights", rescored=True)
def fisher(model, sites, batches) -> Scores:  # type: ignore[no-untyped-def]
    if not batches:
        raise EspalierError("fisher needs calibration data: give it some batches")
    matrices = [site for site in sites if site.target == "weights"]
    units = [site for site in sites if site.target != "weights"]
    scores = Scores(squared_gradients(model, matrices, batches, "fisher") if matrices else ())
    if units:
        scores.update(gate_gradients(model, units, batches, torch.square))
    return scores
