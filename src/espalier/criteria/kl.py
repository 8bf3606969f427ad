"""KL: what removal does to the model's own predictions, to second order; no labels are needed.

The divergence of the predictions from what they were grows by half the Fisher information of the gate: the
squared gradient of the log-probability of every class, weighted by the model's own probability of it. With
more classes than `classes` (a language model's tokens) the labels are drawn from the predictions instead,
`draws` times. Of a single number (regression) the squared gradient of that number is taken.

classes       up to so many classes each is weighted by its probability
draws         labels to draw for each example otherwise
temperature   by which the logits are divided; the divergence is multiplied by its square
"""

from collections.abc import Sequence

import torch
from torch import nn

from ..architectures.site import Site
from ..architectures.sites import STACKED
from ..architectures.stack import StackSite
from ..engine.gate_gradients import gate_gradients
from . import Batches, Scores, criterion
from ._predictions import count_outputs, prediction_losses


@criterion("heads", "neurons", *STACKED, rescored=True, needs_data=True, unit="divergence of the predictions")
def kl(
    model: nn.Module,
    sites: Sequence[Site | StackSite],
    batches: Batches,
    *,
    classes: int = 8,
    draws: int = 2,
    temperature: float = 1.0,
) -> Scores:
    count, _ = count_outputs(model, batches)
    losses = prediction_losses(count, batches, classes, draws, temperature)
    return Scores(gate_gradients(model, sites, batches, torch.square, losses=losses))
