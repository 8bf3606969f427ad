"""Which tokens stay: the first one always, padding never, the others by their scores."""

from __future__ import annotations

import torch
from torch import Tensor

from .schedule import THRESHOLD, TokenSchedule


def first_of(real: Tensor) -> Tensor:
    """Return where the first token of each text is, [batch, tokens]."""
    return real & (real.long().cumsum(1) == 1)


def choose_tokens(
    score: Tensor, real: Tensor, schedule: TokenSchedule, number: int, counts: Tensor
) -> Tensor:
    """Return which tokens are kept, [batch, tokens]: never padding, always the first, at least `counts`."""
    first = first_of(real)
    ranked = score.double().masked_fill(~real, -torch.inf).masked_fill(first, torch.inf)
    order = ranked.argsort(dim=1, descending=True, stable=True)
    spread = torch.arange(order.shape[1], device=order.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, spread)
    kept = rank < counts[:, None]
    if schedule.way == THRESHOLD:
        kept = kept | (score >= schedule.values[number]) | first
    return kept & real
