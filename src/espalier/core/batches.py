"""Calibration batches that can be read more than once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from . import distributed
from .errors import EspalierError


def model_loss(out: Any, batch: Mapping[str, Any]) -> Tensor:
    """The loss the model computed itself, from the labels in the batch."""
    loss = getattr(out, "loss", None)
    if loss is None:
        raise EspalierError(
            "the model returned no loss. Put labels into the batches, or say how to compute one: "
            "Batches(..., loss=lambda out, batch: ...)"
        )
    return loss


def model_inputs(batch: Mapping[str, Any], *, labels: bool = True) -> dict[str, Any]:
    """What of a batch goes to the model: marks for criteria do not, labels only where a loss is wanted."""
    left_out = {"special_tokens_mask"} | (set() if labels else {"labels"})
    return {name: value for name, value in batch.items() if name not in left_out}


def examples_in(batch: Mapping[str, Any]) -> int:
    """How many examples a batch holds."""
    return next((len(value) for value in batch.values() if isinstance(value, Tensor)), 0)


class Batches(list[dict[str, Any]]):
    """Calibration batches you can walk more than once, and the loss that makes gradients of them."""

    def __init__(
        self,
        batches: Iterable[dict[str, Any]] = (),
        loss: Callable[[Any, Mapping[str, Any]], Tensor] = model_loss,
        places: Sequence[Sequence[int]] = (),
        groups: Sequence[Sequence[int]] = (),
        memory: Any = None,
    ):
        super().__init__(batches)
        self.loss = loss
        # which example each row of each batch is, if they were put in another order
        self.places = places
        # which batches count as one, where one was divided to save padding; if not said, each is its own
        self.groups = groups
        self.memory = memory  # a Replay: what of one pass serves the next
        # is told the number of each batch and what the model gave out, by criteria that run it anyway
        self.hear: Callable[[int, Any], None] | None = None

    def each(self, work: Callable[[Sequence[int]], Tensor]) -> Tensor:
        """[groups, …] in float64: what `work` makes of each group's batches, whichever process does it."""
        groups = self.groups or [[number] for number in range(len(self))]
        mine = distributed.my_share([sum(examples_in(self[n]) for n in group) for group in groups])
        return distributed.gather({n: work(groups[n]) for n in mine}, len(groups))

    @property
    def examples(self) -> int:
        return sum(map(examples_in, self))
