"""Scoring within a run: what is shared is scored once, and what is scored is listened to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from .. import criteria
from ..core import distributed
from ..core.mask import Mask, Scores
from ..evaluation.predictions import Answers, Heard
from ..io.rows import Rows
from ..selection.pace import Pace, Unit
from ..selection.scopes import lowest
from .method import AUTO, Strategy
from .session import Bench


class Scoring:
    """A criterion that remembers: the unpruned model is scored once for all who share its scores."""

    def __init__(
        self,
        bench: Bench,
        strategy: Strategy,
        base_scores: Rows,
        seed: int,
        trial: int | None,
        gone: list[Unit],
        pace: Any = None,
    ):
        self.bench, self.strategy, self.base_scores, self.trial = (
            bench,
            strategy,
            base_scores,
            trial,
        )
        self.gone = gone  # grows as the walk goes on: when it is empty, the whole model is scored
        self.criterion = criteria.load(strategy.criterion)
        self.options = dict(strategy.options)
        if trial is not None:
            self.options["seed"] = self.options.get("seed", seed) + trial
        self.pace = Pace.from_dict(pace) if strategy.step == AUTO else None
        self.scores: Scores | None = None  # as the criterion gave them, whatever the direction
        self.ready: Scores | None = None  # made while the model was being measured
        self.seconds = 0.0

    def __call__(self, model: Any, sites: Sequence[Any], _: Any) -> Scores:
        start = time.perf_counter()
        if self.ready is not None:
            found, self.ready = self.ready, None
        elif not self.gone and self.trial is None:
            found = self._of_the_whole(model, sites)
        else:
            found = self._scored(model, sites)
        self.seconds += time.perf_counter() - start
        return found

    def _scored(self, model: Any, sites: Sequence[Any]) -> Scores:
        batches = self.bench.calibration_of(self.strategy.criterion)
        with self.bench.arithmetic():
            return self.criterion(model, sites, batches, **self.options)

    def answers(self, model: Any, sites: Sequence[Any]) -> Answers | None:
        """One pass where two would be made: the examples scored next are the ones to be measured now.

        None if the criterion did not let its passes be heard, all of them.
        """
        start = time.perf_counter()
        batches = self.bench.calibration_of(self.strategy.criterion)
        heard, numbers = Heard(batches, self.bench.task.kind), set()

        def hear(number: int, out: Any) -> None:
            numbers.add(number)
            heard(number, out)

        batches.hear = hear
        try:
            self.ready = self._scored(model, sites)
        finally:
            batches.hear = None
        # Asked of all processes: one that had nothing to score heard nothing, and must not go its own way.
        count = int(distributed.all_sum(torch.tensor([len(numbers)])))
        found = heard.answers() if count == len(batches) else None
        self.seconds += time.perf_counter() - start
        return found

    def _of_the_whole(self, model: Any, sites: Sequence[Any]) -> Scores:
        key = self.strategy.key
        kept = next((row for row in self.base_scores if row["key"] == key), None)
        if kept is None:
            found = self._scored(model, sites)
            kept = {
                "key": key,
                "strategy": self.strategy.label,
                "criterion": self.strategy.criterion,
                "k": 0,
                "scores": [as_json(found[site.name]) for site in sites],
            }
            self.base_scores.add(kept)
        return Scores(
            {
                site.name: torch.tensor([-torch.inf if v is None else v for v in values], dtype=torch.float64)
                for site, values in zip(sites, kept["scores"])
            }
        )

    def choose(self, scores: Scores, keep: float, *, mask: Mask) -> Mask:
        self.ranked = scores
        sign = -1 if self.strategy.reverse else 1
        self.scores = Scores({name: sign * value for name, value in scores.items()})
        if self.pace is not None:
            units = sum(m.numel() for m in mask.values())
            most = round((mask.kept - keep) * units)  # down to the last level
            order = self._sorted(mask, living=True)
            keep = (len(order) - min(self.pace.of(order), most)) / units
        return lowest(scores, keep, mask=mask)

    def closed(self, mask: Mask, gone: set[Unit]) -> list[Unit]:
        """The units that this mask closes, in the order in which they would go one by one."""
        return [unit for unit in self._sorted(mask, living=False) if unit not in gone]

    def _sorted(self, mask: Mask, *, living: bool) -> list[Unit]:
        """The living or the dead, lowest first; among equals the earlier."""
        names = [site.name for site in self.bench.sites]
        found = [
            (layer, int(head))
            for layer, name in enumerate(names)
            for head in (mask[name] == living).nonzero().flatten()
        ]
        return sorted(found, key=lambda unit: float(self.ranked[names[unit[0]]][unit[1]]))

    def spent(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def as_json(values: torch.Tensor) -> list[float | None]:
    """As JSON has it: no gradient is null, one without bound the largest number there is."""
    most = torch.finfo(torch.float64).max
    return [None if v == -float("inf") else min(v, most) for v in values.tolist()]
