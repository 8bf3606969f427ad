"""Learned gates: heads or neurons are closed by the loss and a penalty on open gates, and cut in the end.

Every unit has a hard-concrete gate (engine/hard_concrete.py), learned together with the weights. Gates are
closed in one of two ways:

    penalty   λ(t) · Σ chance to be open is added to the loss; λ is 0 before `delay`, rises linearly during
              `warmup` (both are fractions of the training) and is `penalty` from then on
    remove    the mean chance to be open is held at a value that falls linearly to 1 − `remove` during
              `warmup`. The Lagrange multiplier of this constraint is solved for after every step: of all
              gates with that mean, those nearest to the learned ones (in relative entropy) have every log α
              shifted by the same amount. The loss decides which gates stay open, the constraint how many

At `until` the choice is final: with `remove`, exactly that fraction of gates is closed, those with the lowest
log α; otherwise every gate with log α < 0. The rest of the training adapts the weights to it.

Three techniques keep the start stable (arXiv 2110.03252): the `warmup`, gates that begin open (`init` 2; with
0 each is closed half of the time), and `scaled`: what the open heads of a layer write is multiplied by heads
/ open heads, which the cut folds into the output projection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..architectures.site import Site
from ..architectures.sites import sites
from ..core.errors import InvalidValueError, UnknownNameError
from ..core.mask import Mask, Scores
from ..core.terminal import log
from ..engine.gates import multiplied
from ..engine.hard_concrete import FORMS, decide, expected_open, sample, scale_for
from ..pruning.cut import cut
from ..selection.scopes import remove_lowest
from .callbacks import Hold

if TYPE_CHECKING:
    from .run import Run

TRAVEL = 20.0  # by which `gate_lr` lets log α move in a whole training, were the learning rate constant


@dataclass(eq=False)
class Gates(Hold):
    """Learn which units to keep; in the end the others are cut. See the top of this file."""

    remove: float | None = None
    _: KW_ONLY
    target: str = "heads"
    scope: str = "global"
    penalty: float | None = None
    form: str = "exact"  # of the expected number of open gates that a `penalty` counts
    delay: float = 0.0
    warmup: float = 0.3
    until: float = 0.75
    init: float = 2.0
    scaled: bool = True
    gate_lr: float | None = None  # by default as high as the number of steps needs
    about: Mapping[str, Any] = field(default_factory=dict)  # more settings, such as the method

    _hooks: list[Any] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if (self.remove is None) == (self.penalty is None):
            raise InvalidValueError("gates need either `remove`, a fraction, or a `penalty`", "remove")
        if self.form not in FORMS:
            raise UnknownNameError("form of the expected number of gates", self.form, FORMS, "form")
        for name, valid, wanted in (
            ("remove", self.remove is None or 0 <= self.remove <= 1, "a fraction"),
            ("penalty", self.penalty is None or self.penalty >= 0, "0 or more"),
            ("warmup", 0 <= self.warmup <= 1, "a fraction of the training"),
            ("until", 0 < self.until <= 1, "a fraction of the training"),
            ("delay", 0 <= self.delay < self.until, "a fraction of the training, before `until`"),
            ("gate_lr", self.gate_lr is None or self.gate_lr > 0, "more than 0"),
        ):
            if not valid:
                raise InvalidValueError(f"`{name}` is {getattr(self, name)}; it must be {wanted}", name)

    def settings(self) -> dict[str, Any]:
        names = ("remove", "target", "scope", "penalty", "form", "delay", "warmup", "until", "init")
        mine = {name: getattr(self, name) for name in (*names, "scaled", "gate_lr")}
        return super().settings() | mine | dict(self.about)

    def on_start(self, run: Run) -> None:
        self.hold(run)
        self.units: list[Site] = list(sites(run.model, self.target))  # type: ignore[arg-type]
        device = run.accelerator.device
        self.log_alpha = {
            site.name: torch.full((site.units,), float(self.init), device=device, requires_grad=True)
            for site in self.units
        }
        self.chosen: Mask | None = None
        self.closed_alone = 0  # gates that were closed when the choice was made
        self._steps, self._end = run.total_steps, max(1, round(self.until * run.total_steps))
        self._drawn: dict[str, Tensor] = {}
        rate = self.gate_lr or TRAVEL / run.total_steps
        group = {"params": list(self.log_alpha.values()), "weight_decay": 0.0}
        run.optimizer.add_param_group(group | {"lr_factor": rate / run.settings["lr"]})
        run.trainable |= {f"gate/{name}": gate for name, gate in self.log_alpha.items()}
        self._hooks = [multiplied(site, partial(self._factor, site)) for site in self.units]

    def _factor(self, site: Site) -> Tensor:
        """Return what the units of a site are multiplied by: drawn once a step, or decided."""
        gates = self.log_alpha[site.name]
        if self.chosen is not None:
            value = self.chosen[site.name].to(gates)
        elif site.module("write").training:
            if site.name not in self._drawn:
                self._drawn[site.name] = sample(gates)
            value = self._drawn[site.name]
        else:
            value = decide(gates).to(gates)
        return value * scale_for(value) if self.scaled else value

    def after_backward(self, run: Run) -> None:
        """Average the gradients of the gates over processes, and add that of the penalty."""
        self._drawn.clear()
        if self.chosen is not None:
            return
        for gate in self.log_alpha.values():
            own = torch.zeros_like(gate) if gate.grad is None else gate.grad
            gate.grad = run.accelerator.reduce(own, "mean")
        if strength := self.strength(run.step):
            gates = torch.cat(list(self.log_alpha.values()))
            (strength * expected_open(gates, self.form).sum()).backward()

    def strength(self, step: int) -> float:
        """Return λ of a step."""
        return float(self.penalty or 0.0) * self._rise(step)

    def _rise(self, step: int) -> float:
        """Return how much of the penalty, or of the fraction to remove, counts at a step: from 0 to 1."""
        begin, length = round(self.delay * self._steps), round(self.warmup * self._steps)
        if step < begin:
            return 0.0
        return min(1.0, (step - begin + 1) / length) if length else 1.0

    def after_step(self, run: Run) -> None:
        if self.chosen is not None:
            return
        if self.remove is not None:
            begun = float(torch.tensor(self.init).sigmoid())
            self._hold_mean(begun + (1 - self.remove - begun) * self._rise(run.step - 1))
        if run.step >= self._end:
            self.chosen, self.closed_alone = self.choose(), self._closed()

    @torch.no_grad()
    def _hold_mean(self, opened: float) -> None:
        """Shift every log α by the one amount after which their mean chance to be open is this."""
        gates = torch.cat(list(self.log_alpha.values())).double()
        half = 0.5 / len(gates)  # all open or all closed would be infinitely far
        opened, far = min(max(opened, half), 1 - half), float(gates.abs().max()) + 50.0
        low, high = -far, far
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if expected_open(gates + middle).mean() < opened else (low, middle)
        for gate in self.log_alpha.values():
            gate.add_(middle)

    def choose(self) -> Mask:
        """Return the units to keep as the gates are now."""
        gates = {name: gate.detach().cpu() for name, gate in self.log_alpha.items()}
        if self.remove is None:
            return Mask({name: decide(gate) for name, gate in gates.items()})
        return remove_lowest(Scores(gates), self.remove, scope=self.scope)

    def _closed(self) -> int:
        return sum(int((~decide(gate)).sum()) for gate in self.log_alpha.values())

    def after_training(self, run: Run) -> None:
        """Fold the scales into the output projections and cut the closed units."""
        mask = self.choose() if self.chosen is None else self.chosen
        self._remove_hooks()
        left = sum(int(m.sum()) for m in mask.values())
        if not left:
            log.warning("every gate is closed: the model has no %s left. Lower the `penalty`", self.target)
        with torch.no_grad():
            for site in self.units:
                if self.scaled:
                    site.module("write").weight.mul_(float(scale_for(mask[site.name].float())))
        if mask.kept < 1:
            cut(run.model, mask, report=False)
        self.chosen = mask

    def state(self) -> dict[str, Tensor]:
        out = super().state() | {f"log_alpha/{name}": gate for name, gate in self.log_alpha.items()}
        out["closed"] = torch.tensor(self.closed_alone)
        if self.chosen is not None:
            out |= {f"chosen/{name}": m.to(torch.uint8) for name, m in self.chosen.items()}
        return out

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_state(tensors)
        with torch.no_grad():
            for name, gate in self.log_alpha.items():
                gate.copy_(tensors[f"log_alpha/{name}"])
        self.closed_alone = int(tensors["closed"])
        if any(name.startswith("chosen/") for name in tensors):
            self.chosen = Mask({site.name: tensors[f"chosen/{site.name}"] for site in self.units})

    def summary(self) -> dict[str, Any]:
        mask = self.choose() if self.chosen is None else self.chosen
        kept = {name: int(m.sum()) for name, m in mask.items()}
        return {
            "gates": {"kept": kept, "closed alone": self.closed_alone, "units": sum(map(len, mask.values()))}
        }

    def measures(self, run: Run) -> dict[str, float]:
        kept = self.choose() if self.chosen is None else self.chosen
        return {f"open gates/{name}": float(m.sum()) for name, m in kept.items()}

    def on_end(self) -> None:
        self._remove_hooks()
        super().on_end()

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
