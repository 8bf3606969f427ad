"""Losses one after another, as many epochs each: sublayers first, then predictions, then labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..core.types import PreTrainedModel
from .run import Loss


def stage_of(names: Sequence[str], epoch: int, epochs: int) -> str:
    """Return which of several stages an epoch belongs to, counted from 0."""
    return names[epoch * len(names) // epochs]


@dataclass(eq=False)
class Stages:
    """A loss for `train`: the first of `losses` in the first epochs, the last in the last ones."""

    losses: Mapping[str, Loss]  # {name: loss}, in order
    epoch: int = 0
    epochs: int = 1

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        self.epoch, self.epochs = epoch, epochs

    @property
    def now(self) -> str:
        """The name of the loss of this epoch."""
        return stage_of(list(self.losses), self.epoch, self.epochs)

    @property
    def teacher(self) -> PreTrainedModel | None:
        return next((found for one in self.losses.values() if (found := getattr(one, "teacher", None))), None)

    def settings(self) -> dict[str, Any]:
        """Return what distinguishes this loss from another one, as plain JSON."""
        found: dict[str, Any] = {}
        for one in self.losses.values():
            found |= getattr(one, "settings", dict)()
        return found | {"loss": ",".join(self.losses)}

    def __call__(self, model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
        return self.losses[self.now](model, batch)
