"""A sparsity study read back: lines of points, two rules, and differences with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import EspalierError, suggest
from ..io.json_file import read_json
from ..io.rows import read_rows
from .bootstrap import DRAWS, FEWER, LABELLED, METRICS, Interval, counts, interval
from .reader import decoded, value_of
from .results import LOWER_IS_BETTER

STUDY = "sparsity"  # what run.json says of itself
BASE = "base"
AT_ONCE, RECOVERED, GRADUAL = "one-shot", "recovered", "gradual"
WAYS = (AT_ONCE, RECOVERED, GRADUAL)


@dataclass(frozen=True, eq=False)
class Point:
    """One model, measured on one part. The value is higher for better: a perplexity is held as −ln."""

    level: float
    value: float
    answers: np.ndarray
    row: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Line:
    """One contender, one way, its levels from low to high; `base` is the dense model, untrained."""

    label: str
    way: str
    points: tuple[Point, ...]
    base: Point
    majority: float | None = None  # of the most frequent class; None where there are no classes

    def knee(self, within: float) -> float:
        """The highest sparsity up to which every measured level is `within` so much of the base; or 0."""
        best = 0.0
        for point in self.points:
            if point.value < self.base.value - within - 1e-12:
                break
            best = point.level
        return best

    def collapse(self) -> float | None:
        """The first level at which the model is dead: not above the most frequent class."""
        if self.majority is None:
            return None
        return next((p.level for p in self.points if p.value <= self.majority), None)

    def at(self, level: float) -> Point | None:
        return next((p for p in self.points if p.level == level), None)


@dataclass(frozen=True, eq=False)
class Study:
    """All of a study folder."""

    model: str
    task: str
    metric: str
    base: dict[tuple[str, str], Point]  # by way (of the dense model) and part
    lines: dict[tuple[str, str], Line]  # by label and way
    tests: dict[tuple[str, str, float], Point]
    truth: dict[str, np.ndarray | None]  # by part
    examples: dict[str, int]
    training: Mapping[str, Any] | None
    majority: float | None
    within: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    source: str = ""

    @property
    def dense(self) -> Point:
        return self.base[AT_ONCE, "validation"]

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(label for label, _ in self.lines))

    @property
    def ways(self) -> list[str]:
        return [way for way in WAYS if any(w == way for _, w in self.lines)]

    @property
    def levels(self) -> list[float]:
        return sorted({p.level for line in self.lines.values() for p in line.points})

    def line(self, label: str, way: str) -> Line:
        if (label, way) not in self.lines:
            known = [f"{a} {b}" for a, b in self.lines]
            raise EspalierError(f"{self.source} has no {label} {way}{suggest(f'{label} {way}', known)}")
        return self.lines[label, way]

    def show(self, value: float) -> float:
        """The number a reader expects: a perplexity again where one was measured."""
        return math.exp(-value) if self.metric in LOWER_IS_BETTER else value

    @cached_property
    def _counts(self) -> dict[str, np.ndarray]:
        draws = FEWER if self.metric == "spearman" else DRAWS
        return {part: counts(n, draws, np.random.default_rng(0)) for part, n in self.examples.items()}

    def draws(self, point: Point) -> np.ndarray:
        """The value as each draw of examples sees it; the same examples for every point of a part."""
        part = str(point.row["split"])
        return METRICS[self.metric](self.truth[part], point.answers[None], self._counts[part])[:, 0]

    def interval(self, point: Point, less: Point | None = None) -> Interval:
        """Of a value, or of its difference from another on the same examples."""
        drawn = self.draws(point)
        return interval(drawn if less is None else drawn - self.draws(less))


def is_study(place: Path) -> bool:
    """Whether a folder holds a sparsity study rather than a run that removes units."""
    path = place / "run.json"
    return path.is_file() and read_json(path).get("study") == STUDY


def read_study(folder: str | Path) -> Study:
    """All of a study folder; what is not finished is simply not there."""
    place = Path(folder)
    head, path = read_json(place / "run.json"), place / "rows.jsonl"
    try:
        metric = str(head["metric"])
        parts = {part: head["parts"][part] for part in ("validation", "test")}
        truth = {part: decoded(p["labels"]) if metric in LABELLED else None for part, p in parts.items()}
        found = [(row, _point(row, metric)) for row in read_rows(path)]
        base = {(r["way"], r["split"]): p for r, p in found if r["strategy"] == BASE}
        if (AT_ONCE, "validation") not in base:
            raise EspalierError(f"{path} has no row of the dense model yet")
        majority = _majority(metric, truth["validation"])
        grouped: dict[tuple[str, str], list[Point]] = {}
        place_of = {label: i for i, label in enumerate(head["strategies"])}
        order = sorted(found, key=lambda x: place_of.get(x[0]["strategy"], 0))
        for row, point in order:
            if row["strategy"] != BASE and row["split"] == "validation":
                grouped.setdefault((row["strategy"], row["way"]), []).append(point)
        dense = base[AT_ONCE, "validation"]
        lines = {
            key: Line(*key, tuple(sorted(points, key=lambda p: p.level)), dense, majority)
            for key, points in grouped.items()
        }
        return Study(
            model=str(head["model"]),
            task=str(head["task"]),
            metric=metric,
            base=base,
            lines=lines,
            tests={(r["strategy"], r["way"], p.level): p for r, p in found if r["split"] == "test"},
            truth=truth,
            examples={part: int(p["n"]) for part, p in parts.items()},
            training=head.get("training"),
            majority=majority,
            within=float(head["within"]),
            settings=head,
            notes=tuple(map(str, head.get("notes", ()))),
            source=place.resolve().name,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, EspalierError):
            raise
        raise EspalierError(
            f"{place} is not a sparsity study ({type(error).__name__}: {error}): its rows have strategy, "
            "way, level, split, metrics and predictions"
        ) from None


def _point(row: Mapping[str, Any], metric: str) -> Point:
    answers = decoded(row["predictions"])
    return Point(float(row["level"]), value_of(row["metrics"], metric), answers, row)


def _majority(metric: str, truth: np.ndarray | None) -> float | None:
    if metric != "accuracy" or truth is None or not len(truth):
        return None
    return float(np.unique(truth, return_counts=True)[1].max() / len(truth))
