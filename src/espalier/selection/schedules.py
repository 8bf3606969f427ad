"""Schedules: in which steps a model shrinks. A schedule is a list of the fractions kept after each step.

While a model is trained it is a `Ramp`, which says the same for any step of the training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..core.errors import EspalierError, suggest


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


def geometric(keep: float, steps: int) -> list[float]:
    """The same share of what is left in every step, as lottery tickets are found."""
    keep, steps = _fraction(keep), _steps(steps)
    return [_geometric(1.0, keep, (i + 1) / steps) for i in range(steps)]


def cubed(keep: float, steps: int) -> list[float]:
    """Slow first, fast later: t³. Published as a cubic schedule, but the other way round than `cubic`."""
    keep, steps = _fraction(keep), _steps(steps)
    return [1 - (1 - keep) * ((i + 1) / steps) ** 3 for i in range(steps)]


# What is kept after the share t of the way from `first` to `last`.
SHAPES: dict[str, Callable[[float, float, float], float]] = {
    "one-shot": lambda first, last, t: last,
    "linear": lambda first, last, t: first + (last - first) * t,
    "cubic": lambda first, last, t: last + (first - last) * (1 - t) ** 3,
    "geometric": lambda first, last, t: _geometric(first, last, t),
    "cubed": lambda first, last, t: first + (last - first) * t**3,
}


@dataclass(frozen=True)
class Ramp:
    """What is kept at each step of a training: all before `begin`, `initial` there, `keep` from `end` on.

    >>> ramp = Ramp(keep=0.2, end=100, shape="linear", every=10)
    >>> [round(ramp(step), 2) for step in (0, 9, 10, 50, 100, 1000)]
    [1.0, 1.0, 0.92, 0.6, 0.2, 0.2]

    It goes down in stairs, one every `every` steps; `due` says at which steps there is a new one.
    """

    keep: float
    end: int
    shape: str = "cubic"
    initial: float = 1.0
    begin: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise EspalierError(
                f"no schedule {self.shape!r}{suggest(self.shape, SHAPES)} There are: {', '.join(SHAPES)}"
            )
        if _fraction(self.keep) > _fraction(self.initial):
            raise EspalierError(f"a ramp goes down; this one from {self.initial} to {self.keep}")
        if not 0 <= self.begin <= self.end or self.every < 1:
            raise EspalierError(
                f"a ramp begins at 0 or later, ends after that and has stairs of at least one step; "
                f"got {self.begin} to {self.end}, every {self.every}"
            )
        SHAPES[self.shape](self.initial, self.keep, 0.5)  # better now than at some step

    def __call__(self, step: int) -> float:
        if step < self.begin:
            return 1.0
        if step >= self.end:
            return self.keep
        stair = (step - self.begin) // self.every * self.every
        return SHAPES[self.shape](self.initial, self.keep, stair / (self.end - self.begin))

    def due(self, step: int) -> bool:
        """Whether another fraction holds from this step on."""
        inside = self.begin <= step < self.end and (step - self.begin) % self.every == 0
        if self.shape == "one-shot":
            return step == self.begin
        return inside or step == self.end


def _geometric(first: float, last: float, t: float) -> float:
    if last <= 0:
        raise EspalierError(
            "a geometric schedule never arrives at 0: keep a little, or take another"
        )
    return last if t == 1 else first * (last / first) ** t


def _fraction(keep: float) -> float:
    if not 0 <= keep <= 1:
        raise EspalierError(f"keep is a fraction of the units, from 0 to 1; got {keep!r}")
    return keep


def _steps(steps: int) -> int:
    if steps < 1:
        raise EspalierError(f"a schedule has at least one step; got {steps}")
    return steps
