"""Movement pruning: keep weights that move away from zero (Sanh et al. 2020, arXiv 2005.07683).

Every weight W has a learned score S. W is used as M⊙W, where M keeps the highest scores, and the gradient
passes straight through M: ∂L/∂S = ∂L/∂(M⊙W) ⊙ W. A step of descent lowers the score of a weight that is
pushed towards zero and raises that of one pushed away, also while it is pruned; so weights can come back.
Those that were zero at the start cannot.

All scores start at 0 and are learned much faster than weights (`score_lr`, Adam). W itself has a gradient
only where it is kept. Nothing else is stopped where it is pruned, nor is it in the published method: weight
decay continues, and for some steps the momentum of before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.mask import Scores
from ..selection.scopes import out_of_reach, remove_lowest
from .gradual import Scheduled

if TYPE_CHECKING:
    from .run import Run

@dataclass(eq=False)
class Movement(Scheduled):
    """Prune by learned scores. The mask follows them every `mask_interval` steps until the training ends."""

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
