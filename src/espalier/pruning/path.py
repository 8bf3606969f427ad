"""The way down to a budget: units are scored again after every stage, and one way serves every budget.

Where a repair follows, what a stage left is repaired before it is scored: scores of a model that works tell
what the next repair will not make up for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..architectures.site import Site
from ..architectures.sites import STACKED
from ..architectures.sites import sites as find_sites
from ..core.errors import InvalidValueError
from ..core.mask import Mask, Scores
from ..core.types import PreTrainedModel
from ..selection.budget import LEAST_HEADS, drop_within, keep_within, rearrange, total_cost
from ..selection.scopes import target_of
from .cut import cut

STAGE = 0.84  # the share of the cost that a stage leaves: eight stages to a quarter
REPAIRED_STAGE = 0.75  # where each is repaired before it is scored: five stages to a quarter
MOST_STAGES = 50  # that are counted ahead

FACTORS = (1.0, 0.5, 2.0, 0.25, 4.0)  # of the scores of heads in the candidates of a stage

Best = Callable[[PreTrainedModel, Sequence[Any], Sequence[Mask]], int]  # which of masks of a copy's sites
Fit = Callable[[PreTrainedModel], Any]  # repairs a cut copy, in place
Score = Callable[[PreTrainedModel, Sequence[Site]], Mapping[str, Any]]  # a tensor for each site


@dataclass(frozen=True)
class Waypoint:
    """A mask on the way, its cost, and the scores of what it keeps."""

    mask: Mask
    cost: float
    scores: Scores
    gradients: Mapping[str, Any]  # of gates, [batches, kept units] for each site, if asked for


def stage_shares(last: float, stage: float, few: int = 0) -> list[float]:
    """Return the shares of the cost at which units are scored on the way to `last`, at most `MOST_STAGES`.

    Of a `few` blocks or sublayers one goes at a time; otherwise a stage leaves its share of what was there.
    """
    shares = [1.0]
    while stage and shares[-1] * stage > last and len(shares) < MOST_STAGES:
        shares.append(shares[-1] - 1 / few if few else shares[-1] * stage)
    return shares


class BudgetPath:
    """Masks for any budget. Stages are fixed, so that a budget has the same mask alone or among others.

    model     the unpruned model; it is not changed
    sites     its sites to choose among
    score     scores the sites of a cut copy
    costs     the cost of one unit of each site; of blocks and sublayers, which may differ, of each
    fit       repairs a cut copy before it is scored
    gradients returns those of gates by batches, by which a budget's mask is rearranged within each layer
    best      tells which of a few masks changes the predictions least; `lookahead` masks of a stage are tried
    stage     the share of the cost that is left between two scorings; 0 scores once
    """

    def __init__(
        self,
        model: PreTrainedModel,
        sites: Sequence[Site],
        score: Score,
        costs: Mapping[str, Any],
        *,
        stage: float = STAGE,
        multiple: int = 8,
        least_heads: float = LEAST_HEADS,
        fit: Fit | None = None,
        gradients: Score | None = None,
        best: Best | None = None,
        lookahead: int = 1,
    ):
        if not 0 <= stage < 1:
            raise InvalidValueError(f"`stage` is a share from 0 to below 1; got {stage!r}", "stage")
        self.model, self.sites, self.score, self.costs = model, sites, score, dict(costs)
        if lookahead < 1:
            raise InvalidValueError(f"`lookahead` is at least 1; got {lookahead!r}", "lookahead")
        self.stage, self.fit, self.gradients = stage, fit, gradients
        self.best, self.lookahead = best, lookahead
        self.choice: Any = {"multiple": multiple, "least_heads": least_heads}
        self.whole = total_cost(Mask.ones(sites), self.costs)
        self.targets = list(dict.fromkeys(site.target for site in sites))
        self.waypoints: list[Waypoint] = []
        self._last: tuple[Mask, PreTrainedModel] | None = None  # the working copy of the last stage
        self.aim = torch.inf  # the lowest budget, as far as it is known

    @property
    def progress(self) -> tuple[int, int]:
        """How many stages are scored, and how many there should be; masks may cost less than their stage."""
        few = sum(site.units for site in self.sites if site.target in STACKED)
        total = len(stage_shares(self.aim / self.whole, self.stage, few)) if self.whole else 1
        return len(self.waypoints), max(total, len(self.waypoints) + 1)

    def mask(self, budget: float) -> Mask:
        """Return the mask that costs at most `budget`, by the scores of the last stage above it."""
        self.aim = min(self.aim, budget)
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

    def _working(self, mask: Mask) -> PreTrainedModel:
        """Return what is scored: the model itself, or a copy that is cut and repaired."""
        if mask.kept == 1:
            return self.model
        if self._last is not None and self._last[0] is mask:
            return self._last[1]
        small = self.cut(mask)
        if self.fit is not None:
            self.fit(small)
        if self.lookahead > 1:  # its masks are compared on this copy
            self._last = mask, small
        return small

    def _choose(self, point: Waypoint, budget: float) -> Mask:
        found = self._candidates(point, budget)
        if self.best is None or len(found) == 1:
            return found[0]
        small = self._working(point.mask)
        left = self._sites_in(small)
        inside = [
            Mask({site.name: mask[site.name][point.mask[site.name]] for site in left}) for mask in found
        ]
        return found[self.best(small, left, inside)]

    def _candidates(self, point: Waypoint, budget: float) -> list[Mask]:
        """Return different masks within a budget, the best by its scores first.

        Of layers each of the lowest goes first. Scores of heads and neurons may have no common scale: those
        of the heads count for more or less.
        """
        found: list[Mask] = []
        for number, factor in zip(range(self.lookahead), FACTORS):
            if set(self.targets) & set(STACKED):
                mask = drop_within(point.scores, self.costs, budget, mask=point.mask, first=number)
            else:
                factors = {name: factor if target_of(name) == "heads" else 1.0 for name in point.scores}
                scores = Scores({name: factors[name] * value for name, value in point.scores.items()})
                mask = keep_within(scores, self.costs, budget, mask=point.mask, **self.choice)
            if not any(all(torch.equal(mask[name], other[name]) for name in mask) for other in found):
                found.append(mask)
        return found

    def _rearrange(self, point: Waypoint, mask: Mask) -> Mask:
        inside = Mask({name: mask[name][point.mask[name]] for name in point.gradients})
        for name, kept in rearrange(inside, point.gradients).items():
            mask[name][point.mask[name]] = kept
        return mask

    def _sites_in(self, small: PreTrainedModel) -> list[Any]:
        names = {site.name for site in self.sites}
        return [site for site in find_sites(small, *self.targets) if site.name in names]

    def _waypoint(self, mask: Mask) -> Waypoint:
        small = self._working(mask)
        left = self._sites_in(small)
        found = self.score(small, left)
        scores = Scores()
        for site in self.sites:
            scores[site.name] = torch.full(site.shape, -torch.inf, dtype=torch.float64)
            scores[site.name][mask[site.name]] = found[site.name].double()
        gradients = self.gradients(small, left) if self.gradients else {}
        return Waypoint(mask, total_cost(mask, self.costs), scores, gradients)
