"""A curve: the score of a model against the fraction removed, and the rules that choose a point of it.

A tolerance is how far below the unpruned model a score may lie: 0.01 or "1pt" of the metric, or "1%" of the
model's own. A point is a hundredth of a metric from 0 to 1. Of a perplexity, differences are taken of the
logarithm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import Any, TypeVar

from ..core.errors import InvalidValueError

Value = TypeVar("Value")
Levels = TypeVar("Levels", bound=Mapping[float, Any])
Tolerance = float | str  # a difference of scores, or a text with %
FORM = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(e-?[0-9]{1,2})?\s*(pt|%)?\s*", re.ASCII | re.IGNORECASE)
PHASES = ONE_SHOT, RECOVERED, GRADUAL = "one-shot", "recovered", "gradual"
BASE = "base"  # the method name of the unpruned model
ROUNDING = 1e-9  # 0.99 - 0.98 is a little more than 0.01 in binary; published values have nine digits


@dataclass(frozen=True)
class Curve:
    """Scores (higher is better) at fractions removed; the first fraction is 0, the unpruned model.

    A random method has several trials; `values` is their mean.
    """

    removed: tuple[float, ...]
    values: tuple[float, ...]
    trials: tuple[tuple[float, ...], ...] = ()  # [trials][levels]
    log: bool = False  # whether scores are logarithms: then a percentage is a difference of them

    def __post_init__(self) -> None:
        if any(len(row) != len(self.removed) for row in (self.values, *self.trials)) or not self.removed:
            got = f"{len(self.removed)} levels and {len(self.values)} values"
            raise InvalidValueError(f"a curve has one value per level; got {got}", "values")
        if self.removed[0] != 0 or any(a >= b for a, b in pairwise(self.removed)):
            raise InvalidValueError("the levels of a curve start with 0 and rise", "removed")

    @classmethod
    def of_trials(
        cls, removed: Iterable[float], trials: Iterable[Iterable[float]], log: bool = False
    ) -> Curve:
        """Return the mean curve of several trials at the same levels."""
        rows = tuple(tuple(row) for row in trials)
        if not rows:
            raise InvalidValueError("a curve of trials has at least one trial", "trials")
        mean = tuple(sum(column) / len(column) for column in zip(*rows))
        return cls(tuple(removed), mean if len(set(map(len, rows))) == 1 else (), rows, log)

    @classmethod
    def of_runs(
        cls, base: float, runs: Mapping[int | None, Mapping[float, float]], log: bool = False
    ) -> Curve:
        """Return the curve through {trial: {fraction removed: score}}, from the unpruned model's score on."""
        rows = [sorted({0.0: base, **scores}.items()) for scores in in_order(runs)]
        levels = tuple(removed for removed, _ in rows[0])
        values = [tuple(score for _, score in row) for row in rows]
        return cls(levels, values[0], log=log) if None in runs else cls.of_trials(levels, values, log)

    @property
    def base(self) -> float:
        """The score of the unpruned model."""
        return self.values[0]

    def at(self, removed: float) -> float:
        """Return the score at a fraction removed."""
        found = self.find(removed)
        if found is None:
            near = min(self.removed, key=lambda level: abs(level - removed))
            raise InvalidValueError(
                f"{removed:g} removed was not measured; the nearest is {near:g}", "removed"
            )
        return self.values[found]

    def find(self, removed: float) -> int | None:
        """Return the index of a fraction removed, or None if it was not measured."""
        return next((i for i, x in enumerate(self.removed) if abs(x - removed) <= ROUNDING), None)

    def area(self, levels: Sequence[float] | None = None) -> float:
        """Return the mean height of the curve with straight lines between levels (all, or the given ones)."""
        at = self.removed if levels is None else levels
        return sum(w * self.at(x) for w, x in zip(area_weights(at), at))

    def allowed_drop(self, tolerance: Tolerance) -> float:
        """Return how far below the base a score may lie."""
        return allowed_drop(tolerance, self.base, self.log)

    def within(self, tolerance: Tolerance) -> float:
        """Return the last level before a score first falls more than `tolerance` below the base."""
        levels, drop = zip(self.removed, self.values), self.allowed_drop(tolerance)
        near = takewhile(lambda level: self.base - level[1] <= drop + ROUNDING, levels)
        return max((removed for removed, _ in near), default=0.0)

    def collapse(self, majority: float | None) -> float | None:
        """Return the first fraction at which the score is not above that of the most frequent class."""
        if majority is None:
            return None
        return next((x for x, v in zip(self.removed[1:], self.values[1:]) if v <= majority + ROUNDING), None)

    def trial(self, number: int) -> Curve:
        """Return the curve of one trial; of a method without trials, the curve itself."""
        return replace(self, values=self.trials[number], trials=()) if self.trials else self

    def lowest(self) -> Curve:
        """Return the lowest trial of each level."""
        return replace(self, values=tuple(map(min, zip(*self.trials))), trials=())

    def highest(self) -> Curve:
        """Return the highest trial of each level."""
        return replace(self, values=tuple(map(max, zip(*self.trials))), trials=())


def in_order(runs: Mapping[int | None, Value]) -> list[Value]:
    """Return what belongs to each trial in their order; what has no trial number replaces all others."""
    return [runs[None]] if None in runs else [runs[trial] for trial in sorted(runs, key=lambda t: t or 0)]


def finished(runs: Mapping[int | None, Levels]) -> dict[int | None, Levels]:
    """Return the trials that were measured at every level."""
    levels = max((set(rows) for rows in runs.values()), key=len)
    return {trial: rows for trial, rows in runs.items() if set(rows) == levels}


def area_weights(levels: Sequence[float]) -> list[float]:
    """Return what each level counts in the area: half the distance to its neighbours; the sum is 1."""
    if len(levels) == 1:
        return [1.0]
    out = [0.0] * len(levels)
    for i, (first, last) in enumerate(pairwise(levels)):
        out[i] += (last - first) / 2 / levels[-1]
        out[i + 1] += (last - first) / 2 / levels[-1]
    return out


def shared_levels(a: Curve, b: Curve) -> list[float]:
    """Return the levels that both curves were measured at, without 0."""
    return sorted((set(a.removed) & set(b.removed)) - {0})


def levels_above(a: Curve, b: Curve) -> list[float]:
    """Return the shared levels at which `a` is above `b`."""
    return [x for x in shared_levels(a, b) if a.at(x) > b.at(x) + ROUNDING]


def parse_tolerance(given: float | str) -> Tolerance:
    """Return a number from 0 to below 1, or a text such as "1%".

    >>> parse_tolerance("1pt"), parse_tolerance("1 %"), parse_tolerance(0.02)
    (0.01, '1%', 0.02)
    """
    number_given = isinstance(given, (int, float)) and not isinstance(given, bool)
    found = FORM.fullmatch(repr(float(given)) if number_given else str(given))
    if isinstance(given, bool) or found is None:
        raise InvalidValueError(f"`tolerance` is 0.01, 1pt or 1%; got {given!r}", "tolerance")
    number, unit = float(found[1] + (found[2] or "")), (found[3] or "").lower()
    if not number < (100 if unit else 1):
        instead = "one point is 1pt or 0.01, one percent of the unpruned model's own value 1%"
        raise InvalidValueError(f"`tolerance` {given} would allow any loss: {instead}", "tolerance")
    return f"{number:g}%" if unit == "%" else number / 100 if unit else number


def allowed_drop(tolerance: Tolerance, base: float, log: bool) -> float:
    """Return how far a score may fall below that of the unpruned model."""
    if not isinstance(tolerance, str):
        return tolerance
    share = float(tolerance.removesuffix("%")) / 100
    return math.log1p(share) if log else share * abs(base)
