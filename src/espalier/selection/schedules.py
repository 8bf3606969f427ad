"""Schedules: which fraction of the units is removed after each step. Each shape is defined once.

`schedule` and `greedy` give lists for the pruning loop, `Ramp` gives the fraction at any training step.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..core.errors import InvalidValueError, UnknownNameError
from .scopes import fraction

ONE_SHOT = "one-shot"


def _geometric(first: float, last: float, t: float) -> float:
    if last >= 1:
        raise InvalidValueError(
            "a geometric schedule never reaches `remove` 1: choose another shape", "remove"
        )
    return last if t == 1 else 1 - (1 - first) * ((1 - last) / (1 - first)) ** t


# the fraction removed after the share t of the way from `first` to `last`
SHAPES: dict[str, Callable[[float, float, float], float]] = {
    ONE_SHOT: lambda first, last, t: last,
    "linear": lambda first, last, t: first + (last - first) * t,
    # fast first, slow later (Zhu & Gupta 2017, https://arxiv.org/abs/1710.01878)
    "cubic": lambda first, last, t: last + (first - last) * (1 - t) ** 3,
    # the same share of what is left in every step, as lottery tickets are found
    "geometric": _geometric,
    # slow first, fast later: published as a cubic schedule, but the other way round than `cubic`
    "cubed": lambda first, last, t: first + (last - first) * t**3,
}


def schedule(remove: float, steps: int, shape: str = "cubic") -> list[float]:
    """Return the fraction removed after each of `steps` steps.

    >>> schedule(0.6, 3, "linear")
    [0.2, 0.4, 0.6]
    """
    if steps < 1:
        raise InvalidValueError(f"a schedule has at least one step; got {steps}", "steps")
    ramp = Ramp(remove, steps, shape)
    return [ramp(step + 1) for step in range(steps)]


def greedy(remove: float, units: int, step: int = 1) -> list[float]:
    """Return the fractions when `step` units are removed at a time; the last step may be smaller."""
    if units < 1 or step < 1:
        raise InvalidValueError(
            f"greedy needs at least one unit and one a step; got {units} and {step}", "step"
        )
    last = units - round((1 - fraction(remove)) * units)
    return [n / units for n in ([*range(step, last, step), last] if last else [])]


@dataclass(frozen=True)
class Ramp:
    """The fraction removed at each training step: 0 before `begin`, `initial` there, `remove` from `end` on.

    >>> ramp = Ramp(remove=0.8, end=100, shape="linear", every=10)
    >>> [round(ramp(step), 2) for step in (0, 9, 10, 50, 100, 1000)]
    [0.0, 0.0, 0.08, 0.4, 0.8, 0.8]

    It rises in stairs, one every `every` steps; `due` is true at the steps that begin one.
    """

    remove: float
    end: int
    shape: str = "cubic"
    initial: float = 0.0
    begin: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise UnknownNameError("schedule", self.shape, SHAPES, "schedule")
        if fraction(self.remove) < fraction(self.initial):
            raise InvalidValueError(
                f"`initial` {self.initial} is more than `remove` {self.remove}: a ramp never removes less",
                "initial",
            )
        if not 0 <= self.begin <= self.end or self.every < 1:
            raise InvalidValueError(
                f"a ramp begins at step 0 or later, ends after that and has stairs of at least one step; got "
                f"{self.begin} to {self.end}, every {self.every}",
                "begin",
            )
        SHAPES[self.shape](self.initial, self.remove, 0.5)  # fail now, not at some step

    def __call__(self, step: int) -> float:
        if step < self.begin:
            return 0.0
        if step >= self.end:
            return self.remove
        stair = (step - self.begin) // self.every * self.every
        return SHAPES[self.shape](self.initial, self.remove, stair / (self.end - self.begin))

    def due(self, step: int) -> bool:
        """Return whether another fraction holds from this step on."""
        if self.shape == ONE_SHOT:
            return step == self.begin
        inside = self.begin <= step < self.end and (step - self.begin) % self.every == 0
        return inside or step == self.end
