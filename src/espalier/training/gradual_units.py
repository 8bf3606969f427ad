"""Gradual pruning of heads and neurons: units are removed step by step while the model is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..architectures.site import Site
from ..architectures.sites import sites
from ..core.batches import Batches
from ..core.mask import Mask, Scores
from ..selection.scopes import remove_lowest
from .gradual import MASKS, Scheduled

if TYPE_CHECKING:
    from .run import Run


@dataclass(eq=False)
class GradualUnits(Scheduled):
    """Remove from `initial` to `remove` of the units over the first `until` of the training.

    The columns of a removed unit in the matrix that writes it back are held at zero, so the model computes
    what it will compute after the cut. `mask` names the units to cut when the training has ended.
    """

    score: Callable[..., Scores]
    remove: float
    target: str = field(default="heads", kw_only=True)
    scope: str = field(default="global", kw_only=True)
    schedule: str = field(default="cubic", kw_only=True)
    initial: float = field(default=0.0, kw_only=True)
    until: float = field(default=0.75, kw_only=True)
    mask_interval: int | None = field(default=None, kw_only=True)
    batches: Batches | None = field(default=None, kw_only=True)
    about: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"target": self.target, **self.about}

    def on_start(self, run: Run) -> None:
        self.hold(run)
        self.units: list[Site] = list(sites(run.model, self.target))  # type: ignore[arg-type]
        names = {id(site.linear): site.name for site in self.sites}
        self.writers = {site.name: names[id(site.module("write"))] for site in self.units}
        self.ramp = self.make_ramp(run.total_steps, MASKS)
        self._prune(run)

    def after_step(self, run: Run) -> None:
        self._prune(run)

    @property
    def mask(self) -> Mask:
        """The units whose writer has a column that is not held at zero."""
        out = Mask()
        for site in self.units:
            columns = self.held.mask[self.writers[site.name]].movedim(site.axis("write"), 0).flatten(1).any(1)
            out[site.name] = columns[site.index("write")].any(1)
        return out

    def _prune(self, run: Run) -> None:
        remove = self.ramp(run.step)
        if not self.ramp.due(run.step) or remove <= 0:
            return
        before = self.mask
        if 1 - remove > before.kept:
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
