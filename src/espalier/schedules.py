"""Schedules: in which steps a model shrinks. A schedule is a list of the fractions kept after each step."""

from __future__ import annotations

from .errors import EspalierError


def one_shot(keep: float) -> list[float]:
    """All at once."""
    return [_fraction(keep)]


def greedy(keep: float, units: int, step: int = 1) -> list[float]:
    """`step` units at a time, down to `keep` of them; the last step may be smaller."""
    if units < 1 or step < 1:
        raise EspalierError(
            f"greedy needs at least one unit and one a step; got {units} and {step}"
        )
    last = units - round(_fraction(keep) * units)
    gone = [*range(step, last, step), last] if last else []
    return [(units - n) / units for n in gone]


def linear(keep: float, steps: int) -> list[float]:
    """Equal steps."""
    keep, steps = _fraction(keep), _steps(steps)
    return [1 - (1 - keep) * (i + 1) / steps for i in range(steps)]


def cubic(keep: float, steps: int) -> list[float]:
    """Fast first, slow later (Zhu & Gupta 2017, https://arxiv.org/abs/1710.01878)."""
    keep, steps = _fraction(keep), _steps(steps)
    return [keep + (1 - keep) * (1 - (i + 1) / steps) ** 3 for i in range(steps)]


def _fraction(keep: float) -> float:
    if not 0 <= keep <= 1:
        raise EspalierError(f"keep is a fraction of the units, from 0 to 1; got {keep!r}")
    return keep


def _steps(steps: int) -> int:
    if steps < 1:
        raise EspalierError(f"a schedule has at least one step; got {steps}")
    return steps
