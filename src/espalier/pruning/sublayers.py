"""The way up to a budget: sublayers are chosen and repaired from the bottom, and the rest is scored again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..architectures.site import Site
from ..architectures.sites import sites as find_sites
from ..core.mask import Mask, Scores
from ..core.types import PreTrainedModel
from ..engine.cache import ActivationCache
from ..selection.budget import LEAST_HEADS, keep_within
from .cut import cut
from .path import Score

Fit = Callable[[PreTrainedModel, str], Any]  # repairs one site of a cut copy, in place


class SublayerPath:
    """Masks for any budget, each by a search of its own (Park et al. 2024, https://arxiv.org/abs/2308.03449).

    For every sublayer from the bottom to the top, its units and all above are scored in a model whose
    sublayers below are cut and repaired already. What the rest of the budget keeps of it is final.
    The last repair of the cut model finds the same weights again, as no sublayer reads those above it.

    model     the unpruned model; it is not changed
    sites     its sites to choose among, from the bottom
    score     scores the sites of a copy
    costs     the cost of one unit of each site
    fit       repairs the sublayer that was cut last
    caches    what scoring and fitting keep of the blocks below; cleared when a search ends
    """

    def __init__(
        self,
        model: PreTrainedModel,
        sites: Sequence[Site],
        score: Score,
        costs: Mapping[str, float],
        fit: Fit,
        caches: Sequence[ActivationCache] = (),
        *,
        multiple: int = 8,
        least_heads: float = LEAST_HEADS,
    ):
        self.model, self.sites, self.score, self.costs, self.fit = model, sites, score, dict(costs), fit
        self.choice: Any = {"multiple": multiple, "least_heads": least_heads}
        self.whole = sum(site.units * self.costs[site.name] for site in sites)
        self.progress = (0, len(sites))  # sublayers that are chosen, of all
        self.aim = 0.0  # of a path by stages; here it makes no difference
        self.caches = caches
        self.first: Mapping[str, Any] = {}  # scores of the unpruned model, which all budgets begin with

    def mask(self, budget: float) -> Mask:
        """Return the mask that costs at most `budget`."""
        try:
            return self._search(budget)
        finally:
            for cache in self.caches:
                cache.clear()

    def _search(self, budget: float) -> Mask:
        out, work = Mask.ones(self.sites), copy.deepcopy(self.model)
        for number, site in enumerate(self.sites):
            self.progress = number, len(self.sites)
            names = {one.name for one in self.sites[number:]}
            left = [one for one in find_sites(work) if one.name in names]
            found = self.score(work, left) if number or not self.first else self.first
            self.first = self.first or found
            scores = Scores({one.name: found[one.name].double() for one in left})
            kept = keep_within(scores, self.costs, budget, **self.choice)[site.name]
            out[site.name] = kept
            budget -= int(kept.sum()) * self.costs[site.name]
            if not kept.all():
                only = Mask.ones(left)
                only[site.name] = kept
                work = cut(work, only, report=False)
                self.fit(work, site.name)
        return out

    def cut(self, mask: Mask) -> PreTrainedModel:
        """Return a copy of the model that keeps what the mask does."""
        small = copy.deepcopy(self.model)
        return small if mask.kept == 1 else cut(small, mask, report=False)
