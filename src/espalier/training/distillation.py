"""Distillation: the pruned model learns what the dense one answers, and what it thinks on the way.

loss = (1 − soft) · its own + soft · T² · KL(teacher ‖ student, both at temperature T) + hidden · distance of
hidden states

T² keeps the size of the gradient the same at every temperature (Hinton et al. 2015, arXiv 1503.02531).
Padding counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import EspalierError
from ..core.log import log
from ..io.digest import of_weights


@dataclass(eq=False)
class Distillation:
    """A loss for `train`, with a teacher that stays as it is."""

    teacher: Any
    kind: str = "classification"
    temperature: float = 2.0
    soft: float = 0.5
    hidden: float = 1.0
    name: str = ""  # of the teacher, for the record

    def __post_init__(self) -> None:
        check_lesson(self.temperature, self.soft, self.hidden)
        self.teacher.eval().requires_grad_(False)

    def settings(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in ("temperature", "soft", "hidden")}
        return {"teacher": self.name, "teacher_fingerprint": of_weights(self.teacher), **told}

    def __call__(self, wrapped: Any, given: Mapping[str, Any]) -> Tensor:
        asked = {"output_hidden_states": True} if self.hidden else {}
        out = wrapped(**given, **asked)
        device = out.logits.device
        if next(self.teacher.parameters()).device != device:
            self.teacher.to(device)
        with torch.no_grad():
            said = self.teacher(**{k: v for k, v in given.items() if k != "labels"}, **asked)
        loss = (1 - self.soft) * out.loss
        if self.soft:
            loss = loss + self.soft * self._soft(out.logits.float(), said.logits.float())
        if self.hidden:
            mask = given.get("attention_mask")
            loss = loss + self.hidden * near(states(out), states(said), mask)
        return loss

    def _soft(self, mine: Tensor, theirs: Tensor) -> Tensor:
        if mine.shape != theirs.shape:
            raise EspalierError(
                f"the teacher answers {theirs.shape[-1]} classes, the pruned model {mine.shape[-1]}: "
                "it must be the model that was pruned, or one trained for the same task"
            )
        if self.kind == "regression":  # no distribution to soften
            return F.mse_loss(mine, theirs)
        if self.kind == "language":  # the last token predicts nothing that is known
            mine, theirs = mine[:, :-1], theirs[:, :-1]
        return soft_loss(mine.flatten(0, -2), theirs.flatten(0, -2), self.temperature)


def check_lesson(temperature: float, soft: float, hidden: float) -> None:
    if temperature <= 0 or not 0 <= soft <= 1 or hidden < 0:
        raise EspalierError(
            "distillation needs a temperature above 0, soft from 0 to 1 and hidden of 0 or more; "
            f"got {temperature}, {soft} and {hidden}"
        )


def soft_loss(mine: Tensor, theirs: Tensor, temperature: float) -> Tensor:
    """T² · KL(softmax(theirs / T) ‖ softmax(mine / T)), the mean over rows."""
    want = F.log_softmax(theirs / temperature, -1)
    got = F.log_softmax(mine / temperature, -1)
    return temperature**2 * F.kl_div(got, want, reduction="batchmean", log_target=True)


def near(mine: list[Tensor], theirs: list[Tensor], mask: Tensor | None) -> Tensor:
    """The mean over layers of the mean squared distance of hidden states, where there is text.

    Layers are matched by how deep they lie: 3 of a student's against every second of a teacher's 6.
    """
    if mine[0].shape[-1] != theirs[0].shape[-1]:
        raise EspalierError(
            f"hidden states are {mine[0].shape[-1]} wide in the pruned model and {theirs[0].shape[-1]} in "
            "the teacher, so they cannot be compared. Type --hidden 0"
        )
    total = mine[0].new_zeros((), dtype=torch.float32)
    for i, state in enumerate(mine):
        other = theirs[matching(i, len(mine), len(theirs))]
        each = (state.float() - other.float()).square().mean(-1)
        if mask is None:
            total = total + each.mean()
        else:
            total = total + (each * mask).sum() / mask.sum()
    return total / len(mine)


def matching(layer: int, mine: int, theirs: int) -> int:
    """The teacher's layer for one of the student's: first to first, last to last, evenly between."""
    return round(layer * (theirs - 1) / (mine - 1)) if mine > 1 else theirs - 1


def states(out: Any) -> list[Tensor]:
    found = getattr(out, "hidden_states", None)
    if found is None:  # encoder-decoders keep two rows of them
        found = getattr(out, "decoder_hidden_states", None)
    if not found:
        raise EspalierError("this model gives no hidden states. Type --hidden 0")
    return list(found)


def warn_if_equal(student: Any, teacher: Any) -> None:
    """Nobody learns from himself."""
    mine, theirs = student.state_dict(), teacher.state_dict()
    if mine.keys() == theirs.keys() and all(
        a.shape == theirs[n].shape and torch.equal(a, theirs[n]) for n, a in mine.items()
    ):
        log.warning("the teacher is the very model that shall learn: there is nothing to recover")
