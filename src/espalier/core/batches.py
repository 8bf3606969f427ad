"""Calibration batches that can be iterated more than once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from . import distributed
from .errors import DataError

Batch = Mapping[str, Any]
Loss = Callable[[Any, Batch], Tensor]  # of a model's output and the batch
SCORES = "scores"  # of pairs of texts, whose rows follow one another: no input of a model


def model_loss(out: Any, batch: Batch) -> Tensor:
    """Return the loss that the model computed itself, from the labels in the batch."""
    loss = getattr(out, "loss", None)
    if loss is None:
        raise DataError(
            "the model returned no loss. Put labels into the batches, or compute one from the output: "
            "Batches(..., loss=lambda out, batch: ...)"
        )
    return loss


def model_logits(out: Any, batch: Batch) -> Tensor:
    """Return what the model predicts, as its head gives it."""
    return out.logits  # type: ignore[no-any-return]


def model_inputs(batch: Batch, *, labels: bool = True) -> dict[str, Any]:
    """Return the entries of a batch that the model takes, without the labels if no loss is needed."""
    left_out = {"special_tokens_mask", SCORES} | (set() if labels else {"labels"})
    return {name: value for name, value in batch.items() if name not in left_out}


def examples_in(batch: Batch) -> int:
    """Count the examples of a batch."""
    return next((len(value) for value in batch.values() if isinstance(value, Tensor)), 0)


def _checked(batches: Iterable[Any]) -> Iterable[dict[str, Any]]:
    """Yield the batches; raise for one that a model cannot be called with."""
    valid = 'a batch is a dictionary of tensors, such as {"input_ids": …, "attention_mask": …, "labels": …}'
    if not isinstance(batches, Iterable) or isinstance(batches, str | Mapping | Tensor):
        raise DataError(f"Batches takes a list of batches, not {type(batches).__name__}; {valid}")
    for number, batch in enumerate(batches):
        if not isinstance(batch, Mapping):
            raise DataError(f"batch {number} is a {type(batch).__name__}; {valid}")
        if not any(isinstance(value, Tensor) for value in batch.values()):
            raise DataError(
                f"batch {number} holds no tensor ({', '.join(map(str, batch)) or 'empty'}); {valid}"
            )
        yield batch  # type: ignore[misc]


class Batches(list[dict[str, Any]]):
    """Calibration batches, and the loss whose gradients are taken on them.

    positions   which example each row of each batch is, if examples were reordered
    groups      which batches count as one, where one was divided to save padding; by default each is its own
    cache       an `ActivationCache` that carries results of one pass over to the next
    stream      whether each batch continues the text of the one before, so that memory is carried over
    read        what is predicted, by a model's output and the batch; by default the logits
    """

    def __init__(
        self,
        batches: Iterable[dict[str, Any]] = (),
        loss: Loss = model_loss,
        positions: Sequence[Sequence[int]] = (),
        groups: Sequence[Sequence[int]] = (),
        cache: object = None,
        stream: bool = False,
        read: Loss = model_logits,
    ):
        super().__init__(_checked(batches))
        self.loss, self.positions, self.groups, self.cache = loss, positions, groups, cache
        self.stream, self.read = stream, read
        # Called with (batch number, model output) by criteria that run the model anyway.
        self.on_output: Callable[[int, Any], None] | None = None

    def uncached(self) -> "Batches":
        """Return the same batches without their cache."""
        return Batches(self, self.loss, self.positions, self.groups, read=self.read)

    def map_groups(self, work: Callable[[Sequence[int]], Tensor]) -> Tensor:
        """Return work(batch numbers) of every group, [groups, …] in float64, computed by all processes."""
        groups = self.groups or [[number] for number in range(len(self))]
        mine = distributed.my_share([sum(examples_in(self[n]) for n in group) for group in groups])
        return distributed.gather({n: work(groups[n]) for n in mine}, len(groups))

    @property
    def examples(self) -> int:
        """The number of rows in all batches: of pairs, two each."""
        return sum(map(examples_in, self))

    @property
    def predictions(self) -> int:
        """The number of what is predicted: of texts, and of pairs where two rows are one."""
        return sum(map(self.predictions_in, range(len(self))))

    def predictions_in(self, number: int) -> int:
        """Return how many examples a batch predicts: half of its rows if they are pairs with one score."""
        rows = examples_in(self[number])
        pairs = SCORES in self[number] or (self.positions and 2 * len(self.positions[number]) == rows)
        return rows // 2 if pairs else rows


def require_batches(batches: Batches, method: str) -> None:
    """Raise an error if there is nothing to calibrate on; `method` is who needs it."""
    if not batches:
        raise DataError(f"{method} needs calibration data: pass some batches")
