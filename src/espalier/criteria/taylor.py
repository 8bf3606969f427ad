"""Taylor: what removal does to the loss, to first order (Michel et al. 2019, https://arxiv.org/abs/1905.10650).

|∂loss/∂gate| of each example, averaged. The gate is [batch, units], so one backward pass gives every example
its own gradient and the score does not depend on how examples are put into batches, provided that the loss is
the mean over examples of each one's own, as a classifier's is. A language model's is a mean over tokens; if
examples have different numbers of them, give `Batches` a loss that averages by example. No gradient of a
weight is computed. The same for single weights is `snip`.

signed      the mean of −∂loss/∂gate instead. To remove a unit is to move its gate from 1 to 0, which changes
            the loss by about −∂loss/∂gate: high where the loss would rise, below zero where it would fall, so
            that a unit that does harm is removed first. Without it a unit counts by the size of its effect.
per_layer   divide the scores of each layer by their l2 norm, as Michel et al. do. By default they are left as
            they are: changes of the same loss in every layer, so that a layer whose units all matter little
            loses more of them. Where layers are not compared (scope "layer") it makes no difference.
"""

from collections.abc import Sequence

import torch
from torch import nn

from ..architectures.site import Site
from ..architectures.sites import STACKED
from ..architectures.stack import StackSite
from ..engine.gate_gradients import gate_gradients
from . import Batches, Scores, criterion

TINY = torch.finfo(torch.float64).tiny  # a layer of zeros stays one


@criterion(
    "heads",
    "neurons",
    "slots",
    *STACKED,
    rescored=True,
    needs_data=True,
    needs_labels=True,
    unit="change of the loss",
    colour="#009E73",
    marker="^",
)
def taylor(
    model: nn.Module,
    sites: Sequence[Site | StackSite],
    batches: Batches,
    *,
    signed: bool = False,
    per_layer: bool = False,
) -> Scores:
    found = gate_gradients(model, sites, batches, torch.neg if signed else torch.abs)
    if per_layer:
        found = {name: torch.nn.functional.normalize(score, dim=0, eps=TINY) for name, score in found.items()}
    return Scores(found)
