"""The number of units to remove before scoring again, chosen while pruning (`step="auto"`).

Each scoring shows how good the one before was: the units that its order predicted to be removed next are
compared with the lowest now. While most of them agree, the step doubles; when fewer than half agree, it is
halved. It never exceeds a quarter of the units that are kept, so that the last units are removed one by one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

Unit = tuple[int, int]
SAFE, UNSAFE = 0.75, 0.5  # the share of the predicted units that are still the lowest
MOST = 4  # at most one in so many of the kept units is removed in a step


@dataclass
class Pace:
    """The number of units to remove now, and the units expected to follow."""

    step: int = 1
    expected: list[Unit] = field(default_factory=list)

    def of(self, order: Sequence[Unit]) -> int:
        """Return how many of the kept units, lowest first, to remove now; note which should follow them."""
        if self.expected:
            self.step = next_step(self.step, self.expected, order)
        self.step = max(1, min(self.step, len(order) // MOST))
        self.expected = list(order[self.step : 3 * self.step])
        return self.step

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON for a row."""
        return {"step": self.step, "expected": [list(unit) for unit in self.expected]}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any] | None) -> Self:
        """Return the pace that a row holds; without one, a new one."""
        return cls(raw["step"], [(site, unit) for site, unit in raw["expected"]]) if raw else cls()


def next_step(step: int, expected: Sequence[Unit], order: Sequence[Unit]) -> int:
    """Return twice, the same or half the step, by how many of the expected units are the lowest now.

    >>> next_step(2, [(0, 1), (0, 2), (1, 0), (1, 1)], [(0, 2), (1, 0), (0, 1), (1, 1)])
    4
    >>> next_step(2, [(0, 1), (0, 2), (1, 0), (1, 1)], [(5, 0), (5, 1), (0, 1), (5, 2)])
    1
    """
    agreeing = len(set(expected) & set(order[: len(expected)])) / len(expected)
    return 2 * step if agreeing >= SAFE else step if agreeing >= UNSAFE else max(1, step // 2)
