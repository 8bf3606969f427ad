"""Movement pruning: weights that move away from zero stay (Sanh et al. 2020, arXiv 2005.07683).

Every weight W has a score S, learned beside it. W is used as M⊙W, where M keeps the highest scores, and the
gradient goes straight through M: ∂L/∂S = ∂L/∂(M⊙W) ⊙ W. A step of descent lowers the score of a weight that
is being pushed towards zero, and raises that of one being pushed away, also while it is pruned; so weights
can come back. Those that were zero in the model as it came cannot.

All scores begin at 0 and are learned much faster than weights (`score_rate`, Adam). What is kept falls by the
cubic schedule. W itself has a gradient only where it is open. Nothing else is stopped where it is closed, nor
is it in the published method: weight decay goes on, and for some steps the momentum of before. What comes
back is what these have left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.mask import Scores
from ..selection.schedules import Ramp
from ..selection.scopes import chooser
from .gradual import Hold, check_until, out_of_reach
from .held_mask import Held

MASKS = 100  # on the way down, if nobody says how many steps lie between two: sorting takes its time


@dataclass(eq=False)
class Movement(Hold):
    """Scores that are learned; the mask follows them every `every` steps, to the end of the training."""

    keep: float
    schedule: str = "cubic"
    initial: float = 1.0
    until: float = 0.75
    every: int | None = None
    scope: str = "global"
    score_rate: float = 1e-2

    def __post_init__(self) -> None:
        check_until(self.until)
        self.ramp(1)

    def ramp(self, steps: int) -> Ramp:
        end = round(self.until * steps)
        every = self.every or max(1, end // MASKS)
        return Ramp(self.keep, end, self.schedule, self.initial, every=every)

    def settings(self) -> dict[str, Any]:
        names = ("keep", "schedule", "initial", "until", "every", "scope", "score_rate")
        told = {name: getattr(self, name) for name in names}
        return {"regime": "movement", **told, **self.told_also()}

    def begin(self, run: Any) -> None:
        self.find(run)
        self.stairs = self.ramp(run.total)
        self.held = Held(self.sites, self.start, straight=True).attach(run.optimiser)
        self.scores = {s.name: torch.zeros_like(s.linear.weight) for s in self.sites}
        for score in self.scores.values():
            score.requires_grad_()
        times = self.score_rate / run.settings["rate"]
        group = {"params": list(self.scores.values()), "weight_decay": 0.0, "times": times}
        run.optimiser.add_param_group(group)
        run.named |= {f"score/{name}": score for name, score in self.scores.items()}
        self._mask(run.step)

    def after_backward(self, run: Any) -> None:
        """The gradient of M⊙W becomes that of S and that of W. Processes are averaged by now."""
        for name, w in self.held.weights.items():
            if w.grad is not None:
                self.scores[name].grad = w.grad * self.held.behind[name]
                w.grad.masked_fill_(~self.held.mask[name].to(w.device), 0)

    def after_step(self, run: Any) -> None:
        if run.step % self.stairs.every == 0 or run.step in (self.stairs.end, run.total):
            self._mask(run.step)

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {f"score/{name}": s for name, s in self.scores.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, score in self.scores.items():
                score.copy_(tensors[f"score/{name}"])
        super().restore(tensors)

    def _mask(self, step: int) -> None:
        axes = {site.name: site.input_axis for site in self.sites}
        learned = {name: s.detach() for name, s in self.scores.items()}
        if not any(s.any() for s in learned.values()):  # nothing yet: the smallest weights, not the first
            learned = {name: w.detach().abs() for name, w in self.held.behind.items()}
        scores, keep, choose = Scores(learned, axes=axes), self.stairs(step), chooser(self.scope)
        if out_of_reach(choose, keep, self.start):
            self.held.change(self.start)
        else:
            self.held.change(choose(scores, keep, mask=self.start))
