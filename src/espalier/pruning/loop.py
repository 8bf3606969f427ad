"""The one loop of pruning: score, choose, yield. One-shot, greedy and gradual differ in their schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ..core.batches import Batches
from ..core.mask import Mask, Scores
from ..selection.scopes import SCOPES
from .working_copy import Shrinking


def prune(
    model: nn.Module,
    sites: Sequence[Any],
    criterion: Callable[..., Scores],
    batches: Batches | None,
    schedule: Iterable[float],
    *,
    choose: Callable[..., Mask] | None = None,
    reverse: bool = False,
    rescore: bool = True,
    start: Mask | None = None,
    rest: Shrinking | None = None,
    **options: Any,
) -> Iterator[Mask]:
    """Score what is left, choose, yield the mask; the caller measures, recovers or stops. The model stays.

    >>> for mask in prune(model, heads, criteria.load("gnorm"), batches, greedy(keep=0, units=144)):
    ...     with masked(model, mask):
    ...         print(mask.kept, accuracy(model))

    Without `choose` the lowest of the criterion's own scope go: of the whole model, unless it says another.
    `reverse` removes the highest scores first. Without `rescore` the unpruned model is scored, once. `start`
    goes on from a mask, `rest` shares a shrinking copy with the caller. `options` go to the criterion.
    """
    mask = Mask.ones(sites) if start is None else Mask(start)
    rest = rest or Shrinking(model, sites)
    scores: Scores | None = None
    choose = choose or SCOPES[getattr(criterion, "scope", "global")]
    for keep in schedule:
        if scores is None or rescore:
            scored = mask if rescore else Mask.ones(sites)
            scores = scores_at(rest, scored, criterion, batches, **options)
            if reverse:
                scores = Scores({name: -value for name, value in scores.items()}, scores.axes)
        mask = choose(scores, keep, mask=mask)
        yield mask


def scores_at(
    rest: Shrinking,
    mask: Mask,
    criterion: Callable[..., Scores],
    batches: Batches | None,
    **options: Any,
) -> Scores:
    """The scores of the living in the numbering of the whole model; the dead have −inf."""
    with rest.at(mask) as (model, living):
        found = criterion(model, living, batches, **options)
    if not rest.cuttable:
        return found
    out = Scores()
    for site in rest.sites:
        # Any number will do for the dead, since nobody chooses among them.
        full = torch.full(site.shape, -torch.inf, dtype=torch.float64)
        full[mask[site.name]] = found[site.name]
        out[site.name] = full
    return out
