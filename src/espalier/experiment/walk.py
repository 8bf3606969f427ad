"""Walks: the model at each level of a method. The only thing that differs between targets.

CutWalk     heads and neurons leave a working copy one after the other
ZeroWalk    single weights are set to zero, and the dense weights are restored afterwards
TrainWalk   the model is pruned gradually while it trains
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch

from ..architectures.site import Site
from ..core.mask import Mask, Scores
from ..engine.cache import ActivationCache
from ..evaluation.predictions import Predictions
from ..io.rows import Rows
from ..pruning.compensation import compensate
from ..pruning.loop import WorkingCopy, prune_steps
from ..pruning.zero import zero
from ..selection.pace import Unit
from ..selection.scopes import remove_lowest
from ..training.held_mask import mask_of_zeros
from .method import AUTO, Method
from .recovery import Recovery
from .scorer import Scorer, as_json, score_session
from .session import VALIDATION, Session

Pruned = tuple[Any, Sequence[Any]]  # a model and its sites
LEVELS = 24  # of a random trial of heads or neurons, unless `every` is given


@dataclass
class Stop:
    """One level: the fraction removed, the units removed since the stop before, and facts for its row."""

    removed: float
    order: list[Unit] | None = None
    score: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


class Walk(Protocol):
    """The stops of one method in one phase, and the model at each of them."""

    seconds: dict[str, float]  # spent on making the model, since it was last taken

    def __iter__(self) -> Iterator[Stop]: ...
    def at(self, removed: float) -> AbstractContextManager[Pruned]: ...
    def predict(self, pruned: Pruned, removed: float, split: str) -> Predictions: ...
    def trainable(self, model: Any) -> Any: ...
    def scoring_seconds(self) -> float: ...


class Shared:
    """What all walks of a run share: the working copy, activations, scores of the unpruned model."""

    def __init__(self, session: Session, base_scores: Rows):
        self.copy = WorkingCopy(session.model, session.sites)
        self.cache = ActivationCache(session.cache // 2)
        self.base_scores = base_scores


class CutWalk:
    """Remove units one after the other, from where `order` ends."""

    def __init__(
        self,
        session: Session,
        method: Method,
        trial: int | None,
        shared: Shared,
        levels: Sequence[int],
        order: Sequence[Unit] = (),
        pace: Any = None,
        all_scores: bool = False,
    ):
        self.session, self.method, self.shared = session, method, shared
        self.levels, self.order, self.all_scores = list(levels), list(order), all_scores
        scored = self.order if method.rescore else []
        self.scorer = Scorer(session, method, shared.base_scores, trial, scored, pace)
        self.seconds: dict[str, float] = {}

    def __iter__(self) -> Iterator[Stop]:
        session, units, fresh = self.session, self.session.units, list[Unit]()
        masks = prune_steps(
            session.model,
            session.sites,
            self.scorer,
            session.calibration,
            (k / units for k in self._stops()),
            choose=self.scorer.choose,
            reverse=self.method.reverse,
            rescore=self.method.rescore,
            start=mask_without(session.sites, self.order),
            copy=self.shared.copy,
        )
        for mask in masks:
            new = self.scorer.newly_removed(mask, set(self.order))
            self.order += new
            fresh += new
            if self._at_level and fresh:
                yield self._stop(fresh)
                fresh = []

    def _stops(self) -> Iterator[int]:
        """How many units are removed after each step; `order` grows meanwhile."""
        last, step = self.levels[-1] if self.levels else 0, self.method.step
        if step == AUTO:
            while len(self.order) < last:
                self._at_level = True
                yield last
            return
        every = range(int(step), last, int(step)) if self.method.rescore else ()
        for k in sorted({*every, *self.levels}):
            if k > len(self.order):
                self._at_level = k in self.levels
                yield k

    def _stop(self, fresh: list[Unit]) -> Stop:
        scorer, units = self.scorer, self.session.units
        facts: dict[str, Any] = {} if scorer.pace is None else {"pace": scorer.pace.to_dict()}
        if self.all_scores and scorer.scores is not None:
            facts["scores"] = [as_json(scorer.scores[site.name]) for site in self.session.sites]
        seconds = {"scoring": scorer.take_seconds()}
        return Stop(len(self.order) / units, fresh, scorer.score_of(self.order[-1]), seconds, facts)

    @contextmanager
    def at(self, removed: float) -> Iterator[Pruned]:
        with self.shared.copy.at(mask_without(self.session.sites, self.removed_units(removed))) as pruned:
            yield pruned

    def removed_units(self, removed: float) -> list[Unit]:
        return self.order[: round(removed * self.session.units)]

    def predict(self, pruned: Pruned, removed: float, split: str) -> Predictions:
        """Predict with what other passes have left: the next scoring, or blocks that did not change."""
        (model, sites), cut_units = pruned, self.removed_units(removed)
        if split == VALIDATION and self._scored_next(cut_units):
            found = self.scorer.predictions(model, sites)
            if found is not None:
                return found
        # Test data is measured once or twice, so only validation is worth keeping.
        once = all(isinstance(site, Site) and site.uses == 1 for site in sites)
        if split != VALIDATION or not once:
            return self.session.predict(model, split)
        blocks = list(dict.fromkeys(site.block for site in sites))
        state = [frozenset(unit for unit in cut_units if sites[unit[0]].block is block) for block in blocks]
        with self.shared.cache.over(blocks, state) as reused:
            return self.session.predict(model, split, reused.begin)

    def _scored_next(self, cut_units: Sequence[Unit]) -> bool:
        """Whether this model is about to be scored on the examples it is measured on."""
        again = self.method.rescore and len(cut_units) == len(self.order) < self.levels[-1]
        return again and self.session.scores_validation(self.method.criterion)

    def trainable(self, model: Any) -> Any:
        return copy.deepcopy(model)  # the working copy shares its weights with the unpruned model

    def scoring_seconds(self) -> float:
        return self.scorer.seconds


class ZeroWalk:
    """Set weights to zero, level by level; the scores are computed once for all levels."""

    def __init__(self, session: Session, method: Method, trial: int | None, levels: Sequence[float]):
        self.session, self.method, self.trial, self.levels = session, method, trial, list(levels)
        self.scores: Scores | None = None
        self.seconds: dict[str, float] = {}

    def __iter__(self) -> Iterator[Stop]:
        return (Stop(level) for level in self.levels)

    @cached_property
    def kept(self) -> Mask:
        """The weights that are not zero already: a model may be sparse, and its zeros stay."""
        return mask_of_zeros(self.session.sites)

    @cached_property
    def dense(self) -> dict[str, torch.Tensor]:
        """The weights before anything is pruned."""
        return {name: t.detach().clone() for name, t in self.session.model.state_dict().items()}

    @contextmanager
    def at(self, removed: float) -> Iterator[Pruned]:
        dense = self.dense
        if removed:
            self._prune(removed)
        try:
            yield self.session.model, self.session.sites
        finally:
            with torch.no_grad():
                self.session.model.load_state_dict(dense)

    def _prune(self, removed: float) -> None:
        start = time.perf_counter()
        if self.method.repairs:  # anew for each level: what is moved depends on how much is removed
            repair(self.session, self.method, removed, self.kept)
            self.seconds["repairing"] = time.perf_counter() - start
            return
        if self.scores is None:
            self.scores = score_session(self.session, self.method, self.trial)
            self.seconds["scoring"] = time.perf_counter() - start
            start = time.perf_counter()
        mask = remove_lowest(self.scores, removed, scope=self.method.scope, mask=self.kept)
        zero(self.session.model, mask)
        self.seconds["choosing"] = time.perf_counter() - start

    def predict(self, pruned: Pruned, removed: float, split: str) -> Predictions:
        return self.session.predict(pruned[0], split)

    def trainable(self, model: Any) -> Any:
        return model  # restored afterwards

    def scoring_seconds(self) -> float:
        return 0.0


class TrainWalk(ZeroWalk):
    """Train the dense model from the start for each level, while it is pruned."""

    def __init__(
        self, session: Session, method: Method, trial: int | None, levels: Sequence[float], recovery: Recovery
    ):
        super().__init__(session, method, trial, levels)
        self.recovery = recovery

    def __iter__(self) -> Iterator[Stop]:
        return (Stop(level, facts=self.recovery.gradual_settings()) for level in self.levels)

    def _prune(self, removed: float) -> None:
        start = time.perf_counter()
        self.recovery.during(self.session, self.session.model, self.method, removed, self.trial)
        self.seconds["training"] = time.perf_counter() - start


class TrainCutWalk(TrainWalk):
    """The same for heads and neurons: trained as a copy, then cut."""

    @contextmanager
    def at(self, removed: float) -> Iterator[Pruned]:
        start = time.perf_counter()
        model = copy.deepcopy(self.session.model)
        self.recovery.during(self.session, model, self.method, removed, self.trial)
        self.seconds["training"] = time.perf_counter() - start
        yield model, []


def repair(session: Session, method: Method, removed: float, kept: Mask) -> Mask:
    """Prune in closed form: the kept weights make up for the removed ones."""
    batches = session.calibration_of(method.criterion)
    return compensate(
        session.model, session.sites, batches, removed, scope=method.scope, mask=kept, **method.options
    )


def mask_without(sites: Sequence[Any], cut_units: Sequence[Unit]) -> Mask:
    """Return the mask without some units, each a site's index and a unit of it."""
    units: dict[int | str, list[int]] = {}
    for layer, unit in cut_units:
        units.setdefault(layer, []).append(unit)
    return Mask.without(sites, units)


def count_removed(units: int, remove: float) -> int:
    """How many units a fraction removes: what is kept is rounded, as everywhere."""
    return units - round((1 - remove) * units)


def unit_levels(session: Session, method: Method, remove: Sequence[float]) -> list[int]:
    """How many units are removed at each measurement of a method.

    Several fractions are measured as given; a single one is where the walk ends, measured on the way.
    """
    units = session.units
    ends = [count_removed(units, fraction) for fraction in remove]
    if len(ends) > 1:
        return sorted({k for k in ends if k})
    last = ends[0]
    usual = 1 if method.trials is None else max(1, units // LEVELS)
    step = method.step if method.rescore and method.step != AUTO else 1
    every = method.every or max(usual, int(step))
    return [*range(every, last, every), last] if last else []
