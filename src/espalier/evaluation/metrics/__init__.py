"""Metrics: one file each. The file name is the metric's name, the folder is the registry."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np

from ...core.errors import UnknownNameError
from ...io.plugin import import_optional
from ...tasks.task import SCALES

Scalar = Callable[[np.ndarray, np.ndarray], float]
Resample = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Metric:
    """A number computed from labels and predictions, and what readers of it have to know."""

    compute: Scalar
    kind: str  # of the tasks it applies to: classification, regression or language
    label: str = ""  # in tables and figures
    share: bool = False  # between 0 and 1, shown in percent
    proportion: bool = False  # the fraction of examples that are right, or that are wrong
    lower_is_better: bool = False
    log: bool = False  # compared on a log scale
    draws: int = 1000  # of a bootstrap
    needs_truth: bool = True  # whether it compares predictions with labels
    vectorised: Resample | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.name)

    @property
    def name(self) -> str:
        return self.compute.__name__

    def __call__(self, truth: np.ndarray | None, predictions: np.ndarray) -> float:
        """Compute the metric; NaN where it is undefined. It imports what it needs then."""
        try:
            return float(self.compute(truth, predictions))  # type: ignore[arg-type]
        except ModuleNotFoundError as error:
            if error.name:
                import_optional(error.name, "tasks", "computing metrics")
            raise

    def defined(self, truth: np.ndarray | None, predictions: np.ndarray) -> float | None:
        """Compute the metric; None where it is undefined."""
        value = self(truth, predictions)
        return None if math.isnan(value) else value

    def score(self, value: float) -> float:
        """Convert a value to a score, which is higher for a better model."""
        value = math.log(value) if self.log else value
        return -value if self.lower_is_better else value

    def score_in(self, measured: Mapping[str, float | None]) -> float:
        """Return the score in what was measured of a model, {metric: value}.

        exp overflows long before a mean loss does: then the loss stands for both.
        """
        value = measured[self.name]
        return -(measured["loss"] or 0.0) if value is None else self.score(value)

    def value(self, score: float) -> float:
        """Convert a score back to a value."""
        score = -score if self.lower_is_better else score
        return math.exp(score) if self.log else score

    def resample(self, truth: np.ndarray | None, predictions: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Compute the scores of [levels, n] predictions in every draw of a bootstrap: [draws, levels].

        `counts` [draws, n] is how often each example was drawn.
        """
        if self.vectorised is not None:
            return self.vectorised(truth, predictions, counts)  # type: ignore[arg-type]
        out = np.empty((len(counts), len(predictions)))
        for draw, often in enumerate(counts.astype(int)):
            drawn = None if truth is None else np.repeat(truth, often)
            for level, values in enumerate(predictions):
                out[draw, level] = self.score(self(drawn, np.repeat(values, often)))
        return out


def metric(kind: str, *, resample: Resample | None = None, **facts: Any) -> Callable[[Scalar], Metric]:
    """Declare `def name(truth, predictions) -> float` a metric; `facts` are the other fields of `Metric`.

    `resample(truth, predictions [levels, n], counts [draws, n]) -> [draws, levels]` computes the same under a
    bootstrap in one go, as a score (higher is better); without it every draw is written out and computed.
    """
    return partial(Metric, kind=kind, vectorised=resample, **facts)


def names() -> list[str]:
    """List the metrics."""
    return sorted(info.name for info in iter_modules(__path__) if not info.name.startswith("_"))


def load(name: str) -> Metric:
    """Return a metric by its name."""
    if name not in names():
        raise UnknownNameError("metric", name, names(), parameter="metric")
    found: Metric = getattr(import_module(f"{__name__}.{name}"), name)
    return found


def for_kind(kind: str) -> list[str]:
    """List the metrics of a kind of task; similarities are values on a scale, as those of regression are."""
    kind = "regression" if kind in SCALES else kind
    return [name for name in names() if load(name).kind == kind]


def majority_share(truth: np.ndarray) -> float:
    """Return the fraction of examples that have the most frequent class."""
    return float(np.unique(truth, return_counts=True)[1].max() / len(truth))


def check_above_majority(truth: np.ndarray | None, accuracy: float | None) -> str:
    """Return a warning if an accuracy is not above that of predicting the most frequent class, else ""."""
    if truth is None or not isinstance(accuracy, int | float) or not len(truth):
        return ""
    if accuracy > majority_share(truth):
        return ""
    return (
        f"the unpruned model predicts {100 * accuracy:.1f} % of the validation examples correctly, no more "
        f"than predicting the most frequent class would ({100 * majority_share(truth):.1f} %). Was it "
        "trained for this task, and are its classes numbered like those of the data?"
    )
