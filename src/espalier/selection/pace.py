"""How many units go before the next scoring, when that is left to us (`step=auto`).

Each scoring shows how good the one before was: had its order been followed, which units would have gone
next, and are those the lowest now? As long as most are, twice as many go at once; when half of them are not,
half as many. Never more than a quarter of what lives, so that the end, where everything matters, is careful.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Unit = tuple[int, int]
SAFE, UNSAFE = 0.75, 0.5  # of the predicted units, how many are still the lowest
MOST = 4  # at most one in so many of the living goes at once


@dataclass
class Pace:
    """The number of units to cut now, and the ones expected to follow."""

    step: int = 1
    expected: list[Unit] = field(default_factory=list)

    def of(self, order: Sequence[Unit]) -> int:
        """How many of the living, lowest first, go now; and remember what should come after them."""
        if self.expected:
            self.step = next_step(self.step, self.expected, order)
        self.step = max(1, min(self.step, len(order) // MOST))
        self.expected = list(order[self.step : 3 * self.step])
        return self.step

    def to_dict(self) -> dict[str, Any]:
        return {"step": self.step, "expected": [list(unit) for unit in self.expected]}

    @classmethod
    def from_dict(cls, told: Any) -> Pace:
        """As a row tells it; without one, from the beginning."""
        if not told:
            return cls()
        return cls(told["step"], [(layer, head) for layer, head in told["expected"]])


def next_step(step: int, expected: Sequence[Unit], order: Sequence[Unit]) -> int:
    """Twice, the same or half as many, by how many of the expected are the lowest now.

    >>> next_step(2, [(0, 1), (0, 2), (1, 0), (1, 1)], [(0, 2), (1, 0), (0, 1), (1, 1)])
    4
    >>> next_step(2, [(0, 1), (0, 2), (1, 0), (1, 1)], [(5, 0), (5, 1), (0, 1), (5, 2)])
    1
    """
    kept = len(set(expected) & set(order[: len(expected)])) / len(expected)
    return 2 * step if kept >= SAFE else step if kept >= UNSAFE else max(1, step // 2)
