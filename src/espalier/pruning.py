"""The one loop of pruning: score, choose, yield. One-shot, greedy and gradual differ in their schedule."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from .anatomy import sites as find_sites
from .core import Batches, Mask, Scores
from .probe import masked
from .selection import lowest
from .surgery import cut


def prune(
    model: nn.Module,
    sites: Sequence[Any],
    criterion: Callable[..., Scores],
    batches: Batches | None,
    schedule: Iterable[float],
    *,
    choose: Callable[..., Mask] = lowest,
    reverse: bool = False,
    **options: Any,
) -> Iterator[Mask]:
    """Score what is left, choose, yield the mask; the caller measures, recovers or stops. The model stays.

    >>> for mask in prune(model, heads, criteria.load("gnorm"), batches, greedy(keep=0, units=144)):
    ...     with masked(model, mask):
    ...         print(mask.kept, accuracy(model))

    `reverse` removes the highest scores first. `options` go to the criterion.
    """
    mask = Mask.ones(sites)
    rest = _Rest(model, sites)
    for keep in schedule:
        scores = rest.scores(criterion, batches, mask, options)
        if reverse:
            scores = Scores({name: -value for name, value in scores.items()})
        mask = choose(scores, keep, mask=mask)
        rest.follow(mask)
        yield mask


class _Rest:
    """What is left of the model to be scored: a copy that is cut as the mask closes, so every step is
    cheaper than the one before. Gated ≡ cut makes the scores the same; what cannot be cut is gated."""

    def __init__(self, model: nn.Module, sites: Sequence[Any]):
        self.sites = list(sites)
        self.cuttable = all(s.kind != "weights" and not s.part.uncuttable for s in self.sites)
        self.model = copy.deepcopy(model) if self.cuttable else model
        self.alive = Mask.ones(self.sites)

    def scores(
        self, criterion: Callable[..., Scores], batches: Batches | None, mask: Mask, options: Any
    ) -> Scores:
        if not self.cuttable:
            with masked(self.sites, mask):
                return criterion(self.model, self.sites, batches, **options)
        names = {site.name for site in self.sites}
        found = [site for site in find_sites(self.model) if site.name in names]
        living = criterion(self.model, found, batches, **options)
        out = Scores()
        for site in self.sites:
            # The dead have no score; any number will do, since nobody chooses among them.
            full = torch.full(site.shape, -torch.inf, dtype=torch.float64)
            full[self.alive[site.name]] = living[site.name]
            out[site.name] = full
        return out

    def follow(self, mask: Mask) -> None:
        if not self.cuttable:
            return
        now = Mask({name: m[self.alive[name]] for name, m in mask.items()})
        if not all(m.all() for m in now.values()):
            cut(self.model, now, report=False)
        self.alive = Mask(mask)
