"""What a pruned model is compared with: the model it was made of, and the original if that was cut before."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..analysis.bootstrap import QUANTILES, change_draws
from ..analysis.curves import Tolerance, allowed_drop
from ..core.progress import OnProgress, ignore
from ..core.terminal import log
from ..evaluation import metrics
from ..evaluation.predictions import Predictions, pack
from .assessment import SPLITS, assess, find_chance, predict_split
from .model import original_of
from .session import Session

ONE_SIDED = 0.05


class Reference:
    """The unpruned model: its predictions, and those of the original if it was cut before."""

    def __init__(self, session: Session, on_progress: OnProgress = ignore):
        self.session = session
        what = "the unpruned model"
        self.predictions = {
            split: predict_split(session, session.model, split, on_progress, what) for split in SPLITS
        }
        rows = self.rows(self.predictions)
        self.facts = assess(session, session.model, folder=session.folder, rows=rows, base=True)
        self.at_chance = bool(find_chance(session, self.facts, "the unpruned model").get("at_chance"))
        found = original_of(session.folder)
        metric = session.task.metric
        own: dict[str, Any] = {"model": session.name, "task": session.task.name, "metric": metric}
        data = {split: getattr(session.task, split).fingerprint() for split in SPLITS}
        own |= {"data": data, "max_length": session.max_length}
        self.original: dict[str, Any] = own | {split: self.facts[split][metric] for split in SPLITS}
        if found and all(split in found for split in SPLITS):
            other = [key for key in own if key != "model" and found.get(key) != own[key]]
            if not other:
                self.original = found
            else:
                by = f"by {found.get('metric')}" if other == ["metric"] else "on other examples"
                log.warning(
                    "the original of %s was measured %s: changes are against %s itself",
                    *(session.name, by, session.name),
                )

    def rows(self, predictions: Mapping[str, Predictions]) -> dict[str, Any]:
        """Return predictions as rows, so that nothing is predicted twice."""
        kind = self.session.task.kind
        return {
            split: SimpleNamespace(
                metrics=self.session.metrics(one, split),
                predictions=pack(one.values, kind),
                n=len(one.values),
            )
            for split, one in predictions.items()
        }

    def allowed(self, tolerance: Tolerance, split: str) -> float:
        """Return how far the score may fall below the original model's."""
        metric = metrics.load(self.session.task.metric)
        original = self.original[split]
        return allowed_drop(tolerance, 0.0 if original is None else metric.score(original), metric.log)

    def change(self, predictions: Predictions, split: str) -> dict[str, float | None]:
        """Return the change of the score against the original model; intervals are paired with this one.

        All are None where the metric is not defined.
        """
        session, metric = self.session, metrics.load(self.session.task.metric)
        now = session.metrics(predictions, split)[metric.name]
        if now is None or None in (self.facts[split][metric.name], self.original[split]):
            return dict.fromkeys(("value", "low", "high", "bound"))
        truth, here = session.truth(split), self.predictions[split].values
        draws = change_draws(metric.name, truth, here, predictions.values)
        original = metric.score(float(self.original[split]))
        draws += metric.score(self.facts[split][metric.name]) - original
        low, bound, high = np.quantile(draws, (QUANTILES[0], ONE_SIDED, QUANTILES[1])).tolist()
        value = metric.score(now) - original
        return {"value": value, "low": low, "high": high, "bound": bound}
