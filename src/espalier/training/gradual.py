"""Gradual pruning: weights, heads or neurons are removed step by step while the model is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..architectures.site import Site
from ..architectures.sites import sites
from ..core.batches import Batches
from ..core.errors import InvalidValueError
from ..core.mask import Mask, Scores
from ..pruning.cut import cut
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

    def measures(self, run: Run) -> dict[str, float]:
        return {"removed": self.ramp(run.step)}

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
    what it will compute after the cut, which follows when the training has ended. `mask` names what is kept.
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

    def after_training(self, run: Run) -> None:
        if (mask := self.mask).kept < 1:
            self.on_end()  # no hook may hold a weight that the cut replaces
            cut(run.model, mask, report=False)

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


@dataclass(eq=False)
class Movement(Scheduled):
    """Movement pruning: keep weights that move away from zero (Sanh et al. 2020, arXiv 2005.07683).

    Every weight W has a learned score S. W is used as M⊙W, where M keeps the highest scores, and the gradient
    passes straight through M: ∂L/∂S = ∂L/∂(M⊙W) ⊙ W. A step of descent lowers the score of a weight that is
    pushed towards zero and raises that of one pushed away, also while it is pruned; so weights can come back.
    Those that were zero at the start cannot.

    All scores start at 0 and are learned much faster than weights (`score_lr`, Adam). The mask follows them
    every `mask_interval` steps until the training ends. W itself has a gradient only where it is kept.
    Nothing else is stopped where it is pruned, nor is it in the published method: weight decay continues, and
    for some steps the momentum of before.
    """

    score: Callable[..., Scores] = field(init=False, repr=False)  # learned, not computed
    score_lr: float = field(default=1e-2, kw_only=True)

    ste = True
    masks = 100  # sorting all scores takes time

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"score_lr": self.score_lr}

    def on_start(self, run: Run) -> None:
        super().on_start(run)
        self.scores = {s.name: torch.zeros_like(s.linear.weight, requires_grad=True) for s in self.sites}
        factor = self.score_lr / run.settings["lr"]
        group = {"params": list(self.scores.values()), "weight_decay": 0.0, "lr_factor": factor}
        run.optimizer.add_param_group(group)
        run.trainable |= {f"score/{name}": score for name, score in self.scores.items()}
        self._update_mask(run.step)

    def after_backward(self, run: Run) -> None:
        """Turn the gradient of M⊙W into those of S and of W. It is averaged over processes by now."""
        for name, w in self.held.weights.items():
            if w.grad is not None:
                self.scores[name].grad = w.grad * self.held.latent[name]
                w.grad.masked_fill_(~self.held.mask[name].to(w.device), 0)

    def after_step(self, run: Run) -> None:
        if run.step % self.ramp.every == 0 or run.step in (self.ramp.end, run.total_steps):
            self._update_mask(run.step)

    def state(self) -> dict[str, Tensor]:
        return super().state() | {f"score/{name}": s for name, s in self.scores.items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, score in self.scores.items():
                score.copy_(tensors[f"score/{name}"])
        super().load_state(tensors)

    def _update_mask(self, step: int) -> None:
        learned = {name: s.detach() for name, s in self.scores.items()}
        if not any(s.any() for s in learned.values()):  # before the first step: by magnitude
            learned = {name: w.detach().abs() for name, w in self.held.latent.items()}
        mask, remove = self.start, self.ramp(step)
        if not out_of_reach(self.scope, remove, mask):
            scores = Scores(learned, axes={site.name: site.input_axis for site in self.sites})
            mask = remove_lowest(scores, remove, scope=self.scope, mask=mask)
        self.held.change(mask)
