"""The one loop of pruning: score, choose, yield. One-shot, greedy and gradual differ in their schedule."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ..core.batches import Batches
from ..core.mask import Mask, Scores
from ..core.types import PreTrainedModel
from ..selection.scopes import GLOBAL, remove_lowest
from .working_copy import AnySites, WorkingCopy

Choose = Callable[[Scores, float, Mask], Mask]


def prune_steps(
    model: PreTrainedModel,
    sites: AnySites,
    criterion: Callable[..., Scores],
    batches: Batches | None,
    schedule: Iterable[float],
    *,
    scope: str | None = None,
    choose: Choose | None = None,
    reverse: bool = False,
    rescore: bool = True,
    start: Mask | None = None,
    copy: WorkingCopy | None = None,
    **options: Any,
) -> Iterator[Mask]:
    """Score what is kept, remove the lowest, yield the mask; the caller measures, trains or stops.

    >>> for mask in prune_steps(model, heads, criteria.load("gnorm"), batches, greedy(remove=1, units=144)):
    ...     with masked(model, mask):
    ...         print(mask.kept, accuracy(model))

    `schedule` gives the fraction removed after each step. `scope` is the criterion's own unless given;
    `choose(scores, remove, mask)` replaces both. `reverse` removes the highest scores first. Without
    `rescore` the unpruned model is scored, once. `start` resumes from a mask, `copy` shares a working copy
    with the caller. `options` go to the criterion. The model itself is not changed.
    """
    mask = Mask.ones(sites) if start is None else Mask(start)
    copy = copy or WorkingCopy(model, sites)
    scope = scope or str(getattr(criterion, "scope", GLOBAL))
    scores: Scores | None = None
    for remove in schedule:
        if scores is None or rescore:
            scores = scores_at(copy, mask if rescore else Mask.ones(sites), criterion, batches, **options)
            if reverse:
                scores = Scores({name: -value for name, value in scores.items()}, scores.axes)
        mask = (
            choose(scores, remove, mask) if choose else remove_lowest(scores, remove, scope=scope, mask=mask)
        )
        yield mask


def scores_at(
    copy: WorkingCopy, mask: Mask, criterion: Callable[..., Scores], batches: Batches | None, **options: Any
) -> Scores:
    """Score the units that `mask` keeps, in the numbering of the whole model; removed units get −inf."""
    with copy.at(mask) as (model, kept):
        found = criterion(model, kept, batches, **options)
    if not copy.cuttable:
        return found
    out = Scores()
    for site in copy.sites:
        full = torch.full(site.shape, -torch.inf, dtype=torch.float64)
        full[mask[site.name]] = found[site.name]
        out[site.name] = full
    return out
