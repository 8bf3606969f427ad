"""A regime: what a training does besides plain descent. The loop asks it at the moments that matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

# What is made small: from the model (as accelerate runs it) and a batch.
Loss = Callable[[Any, Mapping[str, Any]], Tensor]


class Regime:
    """Nothing besides. Others override what they need; what they remember goes into the state."""

    def settings(self) -> dict[str, Any]:
        """What makes this training another one, as plain JSON."""
        return {}

    def begin(self, run: Any) -> None:
        """The model and its optimiser are there, no step is done."""

    def after_backward(self, run: Any) -> None:
        """The gradients of a batch are there, neither clipped nor used."""

    def after_step(self, run: Any) -> None:
        """`run.step` steps are done."""

    def tensors(self) -> dict[str, Tensor]:
        """All that a state must hold, apart from weights and moments, to go on from it."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave; the weights are restored already."""

    def outcome(self, run: Any) -> dict[str, Any]:
        """What came of it, as plain JSON; it is kept with the model."""
        return {}

    def end(self) -> None:
        """Leave the model an ordinary one, also after an error."""


def model_loss(wrapped: Any, given: Mapping[str, Any]) -> Tensor:
    """The model's own."""
    return wrapped(**given).loss
