"""Taylor: what removal does to the loss, to first order (Michel et al. 2019, https://arxiv.org/abs/1905.10650).

Of heads and neurons |∂loss/∂gate| of each example, averaged. The gate is [batch, units], so one backward pass
gives every example its own gradient and the score does not depend on how examples are put into batches,
provided that the loss is the mean over examples of each one's own, as a classifier's is. A language model's
is a mean over tokens; if examples have different numbers of them, give `Batches` a loss that averages by
example. No gradient of a weight is computed.

Of single weights |g·w|, with the gradient g of the mean loss.

signed   the mean of −∂loss/∂gate instead, or −g·w. To remove a unit is to move its gate from 1 to 0, which
         changes the loss by about −∂loss/∂gate: high where the loss would rise, below zero where it would
         fall, so that a unit that does harm goes first. Without it a unit counts by how much it does, good
         or bad.
"""

import torch

from ..core.errors import EspalierError
from ..engine.gate_gradients import gate_gradients
from ..engine.weight_gradients import add_gradients
from . import Scores, criterion


@criterion("heads", "neurons", "weights", rescored=True)
def taylor(model, sites, batches, *, signed: bool = False) -> Scores:  # type: ignore[no-untyped-def]
    if not batches:
        raise EspalierError("taylor needs calibration data: give it some batches")
    units = [site for site in sites if site.target != "weights"]
    scores = Scores()
    if units:
        scores.update(gate_gradients(model, units, batches, torch.neg if signed else torch.abs))
    matrices = [site for site in sites if site.target == "weights"]
    if matrices:
        add_gradients(model, matrices, batches, "taylor")
    for site in matrices:
        change = site.fold(lambda w, g: -(g * w))
        scores[site.name] = change if signed else change.abs_()
    return scores
