"""A curve: the score of a model against the fraction removed, and the rules that choose a point of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from ..core.errors import InvalidValueError
from .tolerance import Tolerance, allowed_drop

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
