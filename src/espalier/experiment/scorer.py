"""Scoring within a run: shared scores are computed once, and a scoring pass also collects predictions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from ..core import distributed
from ..core.batches import Batches
from ..core.mask import Mask, Scores
from ..evaluation.predictions import PredictionCollector, Predictions, naming_layer
from ..io.rows import Rows
from ..selection.pace import Pace, Unit
from ..selection.scopes import remove_lowest
from .method import AUTO, Method
from .session import Session


class Scorer:
    """The criterion of a method with a memory: scores of the unpruned model are shared through a file."""

    def __init__(
        self,
        session: Session,
        method: Method,
        base_scores: Rows,
        trial: int | None,
        order: list[Unit],
        pace: Any = None,
    ):
        self.session, self.method, self.base_scores, self.trial = session, method, base_scores, trial
        self.order = order  # grows as units are removed: while it is empty, the whole model is scored
        self.pace = Pace.from_dict(pace) if method.step == AUTO else None
        self.scores: Scores | None = None  # as the criterion gave them, whatever the direction
        self.seconds = 0.0
        self._ready: Scores | None = None  # computed while the model was being measured
        self._ranked = Scores()

    def __call__(self, model: Any, sites: Sequence[Any], _: Any) -> Scores:
        start = time.perf_counter()
        if self._ready is not None:
            found, self._ready = self._ready, None
        elif not self.order and self.trial is None:
            found = self._of_unpruned(model, sites)
        else:
            found = score_model(self.session, self.method, model, sites, trial=self.trial)
        self.seconds += time.perf_counter() - start
        return found

    def predictions(self, model: Any, sites: Sequence[Any]) -> Predictions | None:
        """Score the model and return its predictions from the same pass, where both use the same examples.

        None if the criterion did not report the output of every batch.
        """
        start = time.perf_counter()
        batches = self.session.calibration_of(self.method.criterion)
        collector, numbers = PredictionCollector(batches, self.session.task.kind), set()

        def on_output(number: int, out: Any) -> None:
            numbers.add(number)
            collector(number, out)

        batches.on_output = on_output
        try:
            with naming_layer(model, batches):
                self._ready = score_model(self.session, self.method, model, sites, trial=self.trial)
        finally:
            batches.on_output = None
        # Summed over processes: one that had nothing to score must not decide alone.
        count = int(distributed.all_sum(torch.tensor([len(numbers)])))
        found = collector.predictions() if count == len(batches) else None
        self.seconds += time.perf_counter() - start
        return found

    def _of_unpruned(self, model: Any, sites: Sequence[Any]) -> Scores:
        key = self.method.key
        kept = next((row for row in self.base_scores if row["key"] == key), None)
        if kept is None:
            found = score_model(self.session, self.method, model, sites)
            kept = {
                "key": key,
                "method": self.method.label,
                "criterion": self.method.criterion,
                "removed": 0,
                "scores": [as_json(found[site.name]) for site in sites],
            }
            self.base_scores.add(kept)
        return Scores(
            {
                site.name: torch.tensor([-torch.inf if v is None else v for v in values], dtype=torch.float64)
                for site, values in zip(sites, kept["scores"])
            }
        )

    def choose(self, scores: Scores, remove: float, mask: Mask) -> Mask:
        """Remove the lowest; with steps of its own, no more than the pace allows."""
        self._ranked = scores
        sign = -1 if self.method.reverse else 1
        self.scores = Scores({name: sign * value for name, value in scores.items()})
        if self.pace is not None:
            units = sum(m.numel() for m in mask.values())
            order = self._sorted(mask, kept=True)
            most = len(order) - round((1 - remove) * units)  # down to the last level
            remove = 1 - (len(order) - min(self.pace.of(order), most)) / units
        return remove_lowest(scores, remove, scope=self.method.scope, mask=mask)

    def newly_removed(self, mask: Mask, before: set[Unit]) -> list[Unit]:
        """Return the units that this mask removes, in the order in which they would go one by one."""
        return [unit for unit in self._sorted(mask, kept=False) if unit not in before]

    def _sorted(self, mask: Mask, *, kept: bool) -> list[Unit]:
        """The kept or the removed units, lowest score first; among equals the earlier."""
        names = [site.name for site in self.session.sites]
        found = [
            (layer, int(unit))
            for layer, name in enumerate(names)
            for unit in (mask[name] == kept).nonzero().flatten()
        ]
        return sorted(found, key=lambda unit: float(self._ranked[names[unit[0]]][unit[1]]))

    def score_of(self, unit: Unit) -> float | None:
        """The score of one unit at its removal; None where it is infinite."""
        if self.scores is None:
            return None
        value = float(self.scores[self.session.sites[unit[0]].name][unit[1]])
        return value if abs(value) < float("inf") else None

    def take_seconds(self) -> float:
        """Return the seconds spent since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def as_json(values: torch.Tensor) -> list[Any]:
    """Nested lists for JSON: −inf (no gradient) is null, +inf the largest number there is."""
    if values.dim() > 1:
        return [as_json(row) for row in values]
    most = torch.finfo(torch.float64).max
    return [None if v == -float("inf") else min(v, most) for v in values.tolist()]


def score_model(
    session: Session,
    method: Method,
    model: Any,
    sites: Sequence[Any],
    batches: Batches | None = None,
    *,
    trial: int | None = None,
) -> Scores:
    """Score a model as the criterion of a method does it, in the precision of the session."""
    batches = batches or session.calibration_of(method.criterion)
    with session.arithmetic():
        return method.loaded(model, sites, batches, **method.for_trial(trial, session.seed).options)


def score_session(session: Session, method: Method, trial: int | None = None) -> Scores:
    """Score the session's model by a method, with the signs that make the lowest go first."""
    found = score_model(session, method, session.model, session.sites, trial=trial)
    if method.reverse:
        return Scores({name: -value for name, value in found.items()}, found.axes)
    return found


def score_facts(session: Session, method: Method, scores: Scores) -> dict[str, Any]:
    """Describe scores as plain JSON."""
    return {
        "model": session.name,
        "task": session.task.name,
        "criterion": method.criterion,
        "options": method.options,
        "unit": method.loaded.unit,
        "n": session.calibration.predictions,
        "scores": {name: as_json(values) for name, values in scores.items()},
    }
