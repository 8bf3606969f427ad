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
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import Site
from ..architectures.sites import STACKED
from ..architectures.stack import StackSite
from ..core.batches import Batch, Loss, model_inputs
from ..core.errors import InvalidValueError
from ..engine.gate_gradients import gate_gradients
from . import Batches, Scores, criterion


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
    if not temperature > 0:
        raise InvalidValueError(f"`temperature` is above zero; got {temperature!r}", "temperature")
    check_draws(draws)
    with torch.no_grad():
        count = batches.read(model(**model_inputs(batches[0])), batches[0]).shape[-1]
    if count == 1:
        losses: list[Loss] = [lambda out, batch: batches.read(out, batch).flatten(1).sum(1).mean()]
    elif count <= classes:
        losses = [_weighted(c, temperature) for c in range(count)]
    else:
        losses = [_drawn(draw, draws, temperature) for draw in range(draws)]
    return Scores(gate_gradients(model, sites, batches, torch.square, losses=losses))


def check_draws(draws: int) -> None:
    """Raise an error unless there is something to draw."""
    if draws < 1:
        raise InvalidValueError(f"`draws` is 1 or more; got {draws!r}", "draws")


def _weighted(number: int, temperature: float) -> Loss:
    """Return a loss whose squared gradient is that of one class's log-probability times its probability."""

    def loss(out: Any, batch: Batch) -> Tensor:
        logs = (out.logits / temperature).log_softmax(-1)[..., number]
        own = -temperature * logs * logs.detach().exp().sqrt()
        return own.flatten(1).mean(1).mean() if own.dim() > 1 else own.mean()

    return loss


def _drawn(seed: int, draws: int, temperature: float) -> Loss:
    """Return the loss of labels that are drawn from the predictions, for a mean over `draws` of them."""

    def loss(out: Any, batch: Batch) -> Tensor:
        logs = (out.logits / temperature).log_softmax(-1)
        draw = torch.Generator(device=logs.device).manual_seed(seed)
        labels = torch.multinomial(logs.detach().exp().flatten(0, -2), 1, generator=draw)
        own = -temperature * logs.flatten(0, -2).gather(1, labels).view(logs.shape[:-1]) / draws**0.5
        return own.flatten(1).mean(1).mean() if own.dim() > 1 else own.mean()

    return loss
