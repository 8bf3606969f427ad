"""Gradual pruning: weights are removed step by step while the model is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.batches import Batches
from ..core.errors import InvalidValueError
from ..core.mask import Scores
from ..selection.schedules import Ramp
from ..selection.scopes import out_of_reach, remove_lowest
from .callbacks import Hold

if TYPE_CHECKING:
    from .run import Run

MASKS = 50  # during the ramp, if `mask_interval` is not given


class Scheduled(Hold):
    """What callbacks that prune by a schedule share: the ramp and its settings."""

    remove: float
    scope: str
    schedule: str
    initial: float
    until: float
    mask_interval: int | None

    def __post_init__(self) -> None:
        check_until(self.until)
        self.make_ramp(1, 1)  # raises now, before the data is read

    def make_ramp(self, steps: int, masks: int) -> Ramp:
        """Return the ramp for a training of `steps`, with `masks` stairs unless `mask_interval` is given."""
        end = round(self.until * steps)
        interval = self.mask_interval or max(1, end // masks)
        return Ramp(self.remove, end, self.schedule, self.initial, every=interval)

    def settings(self) -> dict[str, Any]:
        names = ("remove", "scope", "schedule", "initial", "until", "mask_interval")
        return super().settings() | {name: getattr(self, name) for name in names}


@dataclass(eq=False)
class Gradual(Scheduled):
    """Remove from `initial` to `remove` of the weights over the first `until` of the training.

    At every stair of the schedule `score(model, sites, batches)` scores the model as it is, and the lowest of
    the kept weights are removed, so what is pruned stays pruned. With `ste` the weights keep learning behind
    the mask, are scored by what they have learned and may come back, except those that are zero at the start.
    """

    score: Callable[..., Scores]
    remove: float
    scope: str = field(default="global", kw_only=True)
    schedule: str = field(default="cubic", kw_only=True)
    initial: float = field(default=0.0, kw_only=True)
    until: float = field(default=0.75, kw_only=True)
    mask_interval: int | None = field(default=None, kw_only=True)  # steps between two masks
    ste: bool = field(default=False, kw_only=True)  # straight-through estimator
    l1: float = field(default=0.0, kw_only=True)  # strength of an L1 penalty; with remove=0 it alone decides
    batches: Batches | None = field(default=None, kw_only=True)
    about: Mapping[str, Any] = field(default_factory=dict, kw_only=True)  # more settings, such as the method

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.l1 < 0:
            raise InvalidValueError(f"`l1` is the strength of a penalty, 0 or more; got {self.l1}", "l1")

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"ste": self.ste, "l1": self.l1, **self.about}

    def on_start(self, run: Run) -> None:
        self.hold(run, ste=self.ste)
        self.ramp = self.make_ramp(run.total_steps, MASKS)
        for batch in self.batches or ():
            batch.update({name: t.to(run.accelerator.device) for name, t in batch.items()})
        self._prune(run)

    def after_step(self, run: Run) -> None:
        if self.l1:
            self.held.shrink(run.optimizer.param_groups[0]["lr"] * self.l1)
        self._prune(run)

    def _prune(self, run: Run) -> None:
        remove = self.ramp(run.step)
        if not self.ramp.due(run.step) or remove <= 0:
            return
        if self.ste:
            self.held.change(self.start)  # score all that the weights have learned
        if not out_of_reach(self.scope, remove, self.held.mask):
            scores = self.score(run.model, self.sites, self.batches)
            self.held.change(remove_lowest(scores, remove, scope=self.scope, mask=self.held.mask))


def check_until(until: float) -> None:
    """Raise unless `until` is a fraction of the training."""
    if not 0 <= until <= 1:
        raise InvalidValueError(f"`until` is a fraction of the training from 0 to 1; got {until}", "until")
