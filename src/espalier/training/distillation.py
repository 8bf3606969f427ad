"""Distillation: the pruned model learns the predictions and the hidden states of the dense one.

loss = (1 − soft_weight) · its own + soft_weight · T² · KL(teacher ‖ student, both at temperature T)
       + hidden_weight · distance of hidden states

T² keeps the size of the gradient the same at every temperature (Hinton et al. 2015, arXiv 1503.02531).
Padding counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import InvalidValueError, UnsupportedError
from ..core.terminal import log
from ..core.types import PreTrainedModel
from ..io.files import fingerprint_weights
from ..tokens.installation import schedule_of


@dataclass(eq=False)
class Distillation:
    """A loss for `train` with a teacher, which does not change."""

    teacher: PreTrainedModel
    kind: str = "classification"
    temperature: float = 2.0
    soft_weight: float = 0.5
    hidden_weight: float = 1.0
    name: str = ""  # of the teacher, for the record

    def __post_init__(self) -> None:
        for name, valid, wanted in (
            ("temperature", self.temperature > 0, "above 0"),
            ("soft_weight", 0 <= self.soft_weight <= 1, "from 0 to 1"),
            ("hidden_weight", self.hidden_weight >= 0, "0 or more"),
        ):
            if not valid:
                raise InvalidValueError(f"`{name}` is {getattr(self, name)}; it must be {wanted}", name)
        self.teacher.eval().requires_grad_(False)

    def settings(self) -> dict[str, Any]:
        """Return what distinguishes this loss from another one, as plain JSON."""
        weights = {name: getattr(self, name) for name in ("temperature", "soft_weight", "hidden_weight")}
        return {"teacher": self.name, "teacher_fingerprint": fingerprint_weights(self.teacher), **weights}

    def __call__(self, model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
        options = {"output_hidden_states": True} if self.hidden_weight else {}
        student = model(**batch, **options)
        device = student.logits.device
        if next(self.teacher.parameters()).device != device:
            self.teacher.to(device)
        with torch.no_grad():
            teacher = self.teacher(**{k: v for k, v in batch.items() if k != "labels"}, **options)
        loss = (1 - self.soft_weight) * student.loss
        if self.soft_weight:
            loss = loss + self.soft_weight * self._soft_loss(student.logits.float(), teacher.logits.float())
        if self.hidden_weight:
            mine, theirs = _hidden_states(student), _hidden_states(teacher)
            whole = whole_states(model, len(mine))
            loss = loss + self.hidden_weight * hidden_loss(mine, theirs, batch.get("attention_mask"), whole)
        return loss

    def _soft_loss(self, student: Tensor, teacher: Tensor) -> Tensor:
        if student.shape != teacher.shape:
            classes = f"{teacher.shape[-1]} classes, the pruned model {student.shape[-1]}"
            raise UnsupportedError(f"the teacher predicts {classes}: take one trained for the same task")
        if self.kind == "regression":  # no distribution to soften
            return F.mse_loss(student, teacher)
        if self.kind == "language":  # no token is known after the last
            student, teacher = student[:, :-1], teacher[:, :-1]
        return soft_loss(student.flatten(0, -2), teacher.flatten(0, -2), self.temperature)


def soft_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return T² · KL(softmax(teacher / T) ‖ softmax(student / T)), the mean over rows."""
    want = F.log_softmax(teacher / temperature, -1)
    got = F.log_softmax(student / temperature, -1)
    return temperature**2 * F.kl_div(got, want, reduction="batchmean", log_target=True)


def whole_states(model: nn.Module, states: int) -> int:
    """Return how many of its hidden states, from the first, hold every token: all unless it drops some."""
    schedule = schedule_of(getattr(model, "module", model))  # of a model in several processes too
    layers = range(len(schedule.values) if schedule else 0)
    return next((layer + 1 for layer in layers if schedule and schedule.acts(layer)), states)


def hidden_loss(
    student: list[Tensor], teacher: list[Tensor], mask: Tensor | None, whole: int | None = None
) -> Tensor:
    """Return the mean over layers of the mean squared distance of hidden states, without padding.

    Layers are matched by their relative depth: 3 of a student with every second of a teacher's 6. After the
    first `whole` states only the first token is compared: a student that drops tokens always keeps it.
    """
    widths = student[0].shape[-1], teacher[0].shape[-1]
    if widths[0] != widths[1]:
        seen = f"hidden states are {widths[0]} wide, those of the teacher {widths[1]}"
        raise InvalidValueError(f"{seen}: set `hidden_weight` to 0", "hidden_weight")
    total = student[0].new_zeros((), dtype=torch.float32)
    for i, state in enumerate(student):
        other = teacher[teacher_layer(i, len(student), len(teacher))]
        if whole is not None and i >= whole:
            state, other, mask = state[:, :1], other[:, :1], None
        each = (state.float() - other.float()).square().mean(-1)
        total = total + (each.mean() if mask is None else (each * mask).sum() / mask.sum())
    return total / len(student)


def teacher_layer(layer: int, student_layers: int, teacher_layers: int) -> int:
    """Return the teacher's layer for one of the student's: first to first, last to last, evenly between."""
    last = teacher_layers - 1
    return round(layer * last / (student_layers - 1)) if student_layers > 1 else last


def _hidden_states(out: Any) -> list[Tensor]:
    # encoder-decoders have two lists of them
    found = getattr(out, "hidden_states", None) or getattr(out, "decoder_hidden_states", None)
    if not found:
        raise InvalidValueError("the model has no hidden states: set `hidden_weight` to 0", "hidden_weight")
    return list(found)


def warn_if_equal(student: PreTrainedModel, teacher: PreTrainedModel) -> None:
    """Warn if the teacher has the weights of the student, and reads the same tokens."""
    if schedule_of(student) == schedule_of(teacher) and fingerprint_weights(student) == fingerprint_weights(
        teacher
    ):
        log.warning("the teacher has the same weights as the model to train: there is nothing to recover")
