"""Schedules that are learned: thresholds as in LTP, retention as in PoWER-BERT. Soft masks, then hard ones.

While they are learned, no token is removed: what a layer passes on is multiplied by a number from 0 to 1, and
a penalty pulls these numbers down. What comes out is a schedule that drops tokens for good.
LTP: Kim et al. 2022, https://arxiv.org/abs/2107.00910. PoWER-BERT: Goyal et al. 2020,
https://arxiv.org/abs/2001.08950.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..architectures.sites import blocks
from ..architectures.table import architecture_of
from ..core.batches import Batches, model_inputs, require_batches
from ..core.errors import InvalidValueError
from ..core.types import PreTrainedModel
from ..engine.passes import frozen_eval
from .choice import first_of
from .dropper import Dropper
from .installation import schedule_of, set_schedule
from .schedule import THRESHOLD, TOP, TokenSchedule, retention_schedule

BINS = 50  # of PoWER-BERT's ranks, so that texts of all lengths share them

Soft = Callable[[int, Tensor, Tensor], Tensor]


def learn_thresholds(
    model: PreTrainedModel,
    batches: Batches,
    *,
    strength: float = 0.05,
    temperature: float = 1e-3,
    start: float = 1e-4,
    lr: float = 0.1,
    passes: int = 1,
    weights_lr: float = 0.0,
) -> TokenSchedule:
    """Return thresholds learned on the batches, one for each layer (LTP).

    A token counts σ((received − threshold) / temperature). `strength` is that of the penalty, the mean of
    these numbers over tokens, summed over layers; `start` the first thresholds, which rise linearly; `lr` of
    Adam on their logarithms. The weights are frozen unless they have a `weights_lr`.
    """
    _check(strength=strength, temperature=temperature, start=start, lr=lr, passes=passes)
    layers = _layers(model)
    height = torch.log(start * torch.arange(1, layers + 1) / layers).requires_grad_()

    def soft(number: int, score: Tensor, real: Tensor) -> Tensor:
        return torch.sigmoid((score - height[number].exp().to(score)) / temperature)

    _learn(model, batches, [height], soft, strength, lr, passes, weights_lr)
    return TokenSchedule(THRESHOLD, tuple(height.detach().exp().clamp(max=1.0).tolist()))


def learn_retention(
    model: PreTrainedModel,
    batches: Batches,
    *,
    strength: float = 0.05,
    lr: float = 0.05,
    passes: int = 1,
    weights_lr: float = 0.0,
) -> TokenSchedule:
    """Return how many tokens each layer passes on, learned on the batches (PoWER-BERT).

    Tokens are ranked by the attention that they receive from others; each rank has a number from 0 to 1. The
    penalty is their mean, weighted by the number of the layer; the sum over ranks is what is kept.
    """
    _check(strength=strength, lr=lr, passes=passes)
    layers = _layers(model)
    kept = torch.ones(layers, BINS, requires_grad=True)

    def soft(number: int, score: Tensor, real: Tensor) -> Tensor:
        order = score.masked_fill(~real, -1.0).argsort(dim=1, descending=True, stable=True)
        spread = torch.arange(order.shape[1], device=order.device).expand_as(order)
        rank = torch.empty_like(order).scatter_(1, order, spread)
        share = rank * BINS // real.sum(1, keepdim=True).clamp(min=1)
        return kept[number].clamp(0, 1).to(score)[share.clamp(max=BINS - 1)]

    weigh = [(number + 1) / layers for number in range(layers)]
    _learn(model, batches, [kept], soft, strength, lr, passes, weights_lr, weigh, diagonal=False)
    return retention_schedule(kept.detach().clamp(0, 1).mean(1).tolist(), diagonal=False)


def _learn(
    model: PreTrainedModel,
    batches: Batches,
    parameters: list[Tensor],
    soft: Soft,
    strength: float,
    lr: float,
    passes: int,
    weights_lr: float,
    weigh: Iterable[float] | None = None,
    diagonal: bool = True,
) -> None:
    require_batches(batches, "a learned token schedule")
    layers, penalties = _layers(model), list[Tensor]()
    factors = list(weigh or [1.0] * layers)
    before = schedule_of(model)
    set_schedule(model, None)

    def choose(number: int, score: Tensor, real: Tensor, hidden: Tensor) -> Tensor:
        mask = soft(number, score, real)
        mask = torch.where(first_of(real), torch.ones_like(mask), mask)
        penalties.append(factors[number] * ((mask * real).sum(1) / real.sum(1)).mean())
        return hidden * mask[..., None].to(hidden.dtype)

    groups: list[dict[str, Any]] = [{"params": parameters, "lr": lr}]
    if weights_lr:
        groups.append({"params": [p for p in model.parameters() if p.requires_grad], "lr": weights_lr})
    optimiser, steps = torch.optim.Adam(groups), passes * len(batches)
    rates = [group["lr"] for group in groups]
    dropper = Dropper(model, TokenSchedule(TOP, (1.0,) * layers, diagonal=diagonal), choose)
    try:
        for step in range(steps):
            for group, rate in zip(optimiser.param_groups, rates):
                group["lr"] = rate * (1 - step / steps)
            batch = batches[step % len(batches)]
            penalties.clear()
            if weights_lr:
                loss = batches.loss(model(**model_inputs(batch)), batch)
            else:
                with frozen_eval(model):
                    loss = batches.loss(model(**model_inputs(batch)), batch)
            optimiser.zero_grad()
            (loss + strength * torch.stack(penalties).sum()).backward()
            optimiser.step()
    finally:
        dropper.remove()
        if before is not None:
            set_schedule(model, before)


def _layers(model: PreTrainedModel) -> int:
    return len(list(blocks(model, architecture_of(model))))


def _check(**given: float) -> None:
    for name, value in given.items():
        if not value > 0 and not (name == "strength" and value == 0):
            raise InvalidValueError(f"`{name}` is a number above 0; got {value}", name)
