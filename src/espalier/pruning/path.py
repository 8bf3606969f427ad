"""The way down to a budget: units are scored again after every stage, and one way serves every budget."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..architectures.site import Site
from ..architectures.sites import sites as find_sites
from ..core.errors import InvalidValueError
from ..core.mask import Mask, Scores
from ..core.types import PreTrainedModel
from ..selection.budget import LEAST_HEADS, keep_within, rearrange, total_cost
from .cut import cut

STAGE = 0.84  # the share of the cost that a stage leaves: eight stages to a quarter

Score = Callable[[PreTrainedModel, Sequence[Site]], Mapping[str, Any]]  # a tensor for each site


@dataclass(frozen=True)
class Waypoint:
    """A mask on the way, its cost, and the scores of what it keeps."""

    mask: Mask
    cost: float
    scores: Scores
    products: Mapping[str, Any]  # of gate gradients, [kept units, kept units] for each site, if asked for


class BudgetPath:
    """Masks for any budget. Stages are fixed, so that a budget has the same mask alone or among others.

    model     the unpruned model; it is not changed
    sites     its sites to choose among
    score     scores the sites of a cut copy
    costs     the cost of one unit of each site
    products  returns products of gate gradients, by which a budget's mask is rearranged within each layer
    stage     the share of the cost that is left between two scorings; 0 scores once
    """

    def __init__(
        self,
        model: PreTrainedModel,
        sites: Sequence[Site],
        score: Score,
        costs: Mapping[str, float],
        *,
        stage: float = STAGE,
        multiple: int = 8,
        least_heads: float = LEAST_HEADS,
        products: Score | None = None,
    ):
        if not 0 <= stage < 1:
            raise InvalidValueError(f"`stage` is a share from 0 to below 1; got {stage!r}", "stage")
        self.model, self.sites, self.score, self.costs = model, sites, score, dict(costs)
        self.stage, self.products = stage, products
        self.choice: Any = {"multiple": multiple, "least_heads": least_heads}
        self.whole = sum(site.units * self.costs[site.name] for site in sites)
        self.waypoints: list[Waypoint] = []

    def mask(self, budget: float) -> Mask:
        """Return the mask that costs at most `budget`, by the scores of the last stage above it."""
        if not self.waypoints:
            self.waypoints.append(self._waypoint(Mask.ones(self.sites)))
        while self.stage and self.waypoints[-1].cost * self.stage > budget:
            last = self.waypoints[-1]
            mask = self._choose(last, last.cost * self.stage)
            if total_cost(mask, self.costs) in (0, last.cost):
                break  # nothing is left to be scored, or no unit is small enough
            self.waypoints.append(self._waypoint(mask))
        above = [point for point in self.waypoints if point.cost >= budget] or self.waypoints[:1]
        return self._rearrange(above[-1], self._choose(above[-1], budget))

    def cut(self, mask: Mask) -> PreTrainedModel:
        """Return a copy of the model that keeps what the mask does."""
        small = copy.deepcopy(self.model)
        return small if mask.kept == 1 else cut(small, mask, report=False)

    def _choose(self, point: Waypoint, budget: float) -> Mask:
        return keep_within(point.scores, self.costs, budget, mask=point.mask, **self.choice)

    def _rearrange(self, point: Waypoint, mask: Mask) -> Mask:
        inside = Mask({name: mask[name][point.mask[name]] for name in point.products})
        for name, kept in rearrange(inside, point.products).items():
            mask[name][point.mask[name]] = kept
        return mask

    def _waypoint(self, mask: Mask) -> Waypoint:
        small = self.cut(mask) if mask.kept < 1 else self.model
        names = {site.name for site in self.sites}
        left = [site for site in find_sites(small) if site.name in names]
        found = self.score(small, left)
        scores = Scores()
        for site in self.sites:
            scores[site.name] = torch.full(site.shape, -torch.inf, dtype=torch.float64)
            scores[site.name][mask[site.name]] = found[site.name].double()
        products = self.products(small, left) if self.products else {}
        return Waypoint(mask, total_cost(mask, self.costs), scores, products)
