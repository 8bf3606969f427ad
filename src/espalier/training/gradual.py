"""Gradual pruning: weights, heads or neurons are removed step by step while the model is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..architectures.site import Site
from ..architectures.sites import sites
from ..core.batches import Batches
from ..core.errors import InvalidValueError
from ..core.mask import Mask, Scores
from ..selection.schedules import Ramp
from ..selection.scopes import out_of_reach, remove_lowest
from .callbacks import Hold

if TYPE_CHECKING:
    from .run import Run


@dataclass(eq=False)
class Scheduled(Hold):
    """What callbacks that prune by a schedule share: from `initial` to `remove` over the first `until`."""

    score: Callable[..., Scores]
    remove: float
    _: KW_ONLY
    scope: str = "global"
    schedule: str = "cubic"
    initial: float = 0.0
    until: float = 0.75
    mask_interval: int | None = None  # steps between two masks
    batches: Batches | None = None
    about: Mapping[str, Any] = field(default_factory=dict)  # more settings, such as the method

    ste = False
    masks = 50  # during the ramp, if `mask_interval` is not given

    def __post_init__(self) -> None:
        if not 0 <= self.until <= 1:
            raise InvalidValueError(f"`until` is a fraction of the training; got {self.until}", "until")
        self.ramp = self._ramp(1)  # raises now, before the data is read

    def _ramp(self, steps: int) -> Ramp:
        end = round(self.until * steps)
        interval = self.mask_interval or max(1, end // self.masks)
        return Ramp(self.remove, end, self.schedule, self.initial, every=interval)

    def settings(self) -> dict[str, Any]:
        names = ("remove", "scope", "schedule", "initial", "until", "mask_interval")
        return super().settings() | {name: getattr(self, name) for name in names} | dict(self.about)

    def on_start(self, run: Run) -> None:
        self.hold(run, ste=self.ste)
        self.ramp = self._ramp(run.total_steps)
        for batch in self.batches or ():
            batch.update({name: t.to(run.accelerator.device) for name, t in batch.items()})

    def _removed_now(self, step: int) -> float:
        """Return the fraction to remove if a new mask is due at this step, else 0."""
        return self.ramp(step) if self.ramp.due(step) else 0.0


@dataclass(eq=False)
class Gradual(Scheduled):
    """Remove from `initial` to `remove` of the weights over the first `until` of the training.

    At every stair of the schedule `score(model, sites, batches)` scores the model as it is, and the lowest of
    the kept weights are removed, so what is pruned stays pruned. With `ste` the weights keep learning behind
    the mask, are scored by what they have learned and may come back, except those that are zero at the start.
    """

    _: KW_ONLY
    ste: bool = False  # straight-through estimator
    l1: float = 0.0  # strength of an L1 penalty; with remove=0 it alone decides

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.l1 < 0:
            raise InvalidValueError(f"`l1` is the strength of a penalty, 0 or more; got {self.l1}", "l1")

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"ste": self.ste, "l1": self.l1}

    def on_start(self, run: Run) -> None:
        super().on_start(run)
        self._prune(run)

    def after_step(self, run: Run) -> None:
        if self.l1:
            self.held.shrink(run.optimizer.param_groups[0]["lr"] * self.l1)
        self._prune(run)

    def _prune(self, run: Run) -> None:
        remove = self._removed_now(run.step)
        if remove > 0 and self.ste:
            self.held.change(self.start)  # score all that the weights have learned
        if remove > 0 and not out_of_reach(self.scope, remove, self.held.mask):
            scores = self.score(run.model, self.sites, self.batches)
            self.held.change(remove_lowest(scores, remove, scope=self.scope, mask=self.held.mask))


@dataclass(eq=False)
class GradualUnits(Scheduled):
    """Remove from `initial` to `remove` of the units over the first `until` of the training.

    The columns of a removed unit in the matrix that writes it back are held at zero, so the model computes
    what it will compute after the cut. `mask` names the units to cut when the training has ended.
    """

    target: str = field(default="heads", kw_only=True)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"target": self.target}

    def on_start(self, run: Run) -> None:
        super().on_start(run)
        self.units: list[Site] = list(sites(run.model, self.target))  # type: ignore[arg-type]
        names = {id(site.linear): site.name for site in self.sites}
        self.writers = {site.name: names[id(site.module("write"))] for site in self.units}
        self.after_step(run)

    @property
    def mask(self) -> Mask:
        """The units whose writer has a column that is not held at zero."""
        out = Mask()
        for site in self.units:
            columns = self.held.mask[self.writers[site.name]].movedim(site.axis("write"), 0).flatten(1).any(1)
            out[site.name] = columns[site.index("write")].any(1)
        return out

    def after_step(self, run: Run) -> None:
        remove = self._removed_now(run.step)
        if remove <= 0 or 1 - remove > (before := self.mask).kept:
            return
        scores = self.score(run.model, self.units, self.batches)
        chosen = remove_lowest(scores, remove, scope=self.scope, mask=before)
        weights = Mask(self.held.mask)
        for site in self.units:
            name, axis = self.writers[site.name], site.axis("write")
            columns = site.spread(chosen[site.name].float()).bool()
            shape = [-1 if i == axis else 1 for i in range(weights[name].dim())]
            weights[name] = torch.logical_and(weights[name], columns.view(shape))
        self.held.change(weights)
