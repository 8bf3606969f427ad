"""Accuracy against units removed: what a curve says, by stated rules rather than by eye."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..core.errors import EspalierError

ROUNDING = 1e-9  # 0.99 - 0.98 is a little more than 0.01 in binary


@dataclass(frozen=True)
class Curve:
    """One run of a strategy: how many units were removed at each level, and the accuracy there."""

    removed: tuple[int, ...]
    accuracy: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.removed) != len(self.accuracy) or not self.removed:
            raise EspalierError(
                f"a curve has an accuracy for every level; got {len(self.removed)} levels and "
                f"{len(self.accuracy)} accuracies"
            )
        if self.removed[0] != 0 or any(a >= b for a, b in pairwise(self.removed)):
            raise EspalierError("a curve starts with nothing removed and goes on in rising levels")

    @property
    def base(self) -> float:
        """The accuracy of the unpruned model."""
        return self.accuracy[0]

    def at(self, removed: int) -> float:
        """The accuracy at one level."""
        if removed not in self.removed:
            near = min(self.removed, key=lambda level: abs(level - removed))
            raise EspalierError(f"nothing was measured at {removed} units removed; the nearest is {near}")
        return self.accuracy[self.removed.index(removed)]

    def area(self) -> float:
        """The mean accuracy along the curve: straight lines between levels, every unit counting alike."""
        if len(self.removed) == 1:
            return self.base
        steps = zip(pairwise(self.removed), pairwise(self.accuracy))
        return sum((k2 - k1) * (a1 + a2) / 2 for (k1, k2), (a1, a2) in steps) / self.removed[-1]

    def unbroken(self, points: float) -> int:
        """How many can go before the accuracy first falls more than `points` below the base."""
        best = 0
        for removed, accuracy in zip(self.removed, self.accuracy):
            if self.base - accuracy > points + ROUNDING:
                break
            best = removed
        return best

    def furthest(self, points: float) -> int:
        """The last level within `points` of the base, whatever lies between: lucky rebounds count."""
        near = [k for k, a in zip(self.removed, self.accuracy) if self.base - a <= points + ROUNDING]
        return near[-1]


@dataclass(frozen=True)
class Trials:
    """Random removal, many times over the same levels."""

    removed: tuple[int, ...]
    accuracy: tuple[tuple[float, ...], ...]  # [trials][levels]

    def __post_init__(self) -> None:
        if not self.accuracy:
            raise EspalierError("there are no trials")
        for row in self.accuracy:
            Curve(self.removed, row)

    @property
    def curves(self) -> list[Curve]:
        return [Curve(self.removed, row) for row in self.accuracy]

    def mean(self) -> Curve:
        return self._by_level(lambda values: sum(values) / len(values))

    def lowest(self) -> Curve:
        return self._by_level(min)

    def highest(self) -> Curve:
        return self._by_level(max)

    def beaten_by(self, curve: Curve) -> dict[int, float]:
        """{level: the fraction of trials that the curve is above}, at the levels both were measured at."""
        both = sorted(set(self.removed) & set(curve.removed))
        columns = dict(zip(self.removed, zip(*self.accuracy)))
        return {k: sum(curve.at(k) > a for a in columns[k]) / len(self.accuracy) for k in both}

    def _by_level(self, pool: Callable[[Sequence[float]], float]) -> Curve:
        return Curve(self.removed, tuple(pool(column) for column in zip(*self.accuracy)))
