"""What a model predicts: one prediction and one loss for every example, and the metrics made of them.

Torch is imported when a model is run, not to read predictions from files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..core.errors import DataError
from . import metrics

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers.utils import ModelOutput

    from ..core.batches import Batches

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Predictions:
    """Predictions and losses in the order of the examples, not of the batches."""

    values: np.ndarray  # [examples]: classes, values on a scale, or the losses of blocks of running text
    losses: np.ndarray  # [examples], nats

    def metrics(self, kind: str, truth: np.ndarray | None) -> dict[str, float]:
        """Compute every metric of a kind of task, and the mean loss."""
        found = {name: metrics.load(name)(truth, self.values) for name in metrics.for_kind(kind)}
        return {**found, "loss": float(self.losses.mean())}


def predict(
    model: nn.Module,
    batches: Batches,
    kind: str = "classification",
    on_batch: Callable[[int], None] | None = None,
) -> Predictions:
    """Run the model over the batches, without gradients; call `on_batch(number)` before each batch."""
    import torch

    from ..core import distributed
    from ..core.batches import model_inputs
    from ..engine.cache import first_token_only
    from ..engine.gates import frozen_eval

    collector = PredictionCollector(batches, kind)
    device = next(model.parameters()).device
    mine = distributed.my_share([int(batch["input_ids"].numel()) for batch in batches])
    with frozen_eval(model), first_token_only(model), torch.inference_mode():
        for number in mine:
            if on_batch:
                on_batch(number)
            here = {name: value.to(device) for name, value in batches[number].items()}
            collector(number, model(**model_inputs(here, labels=False)))
    return collector.predictions()


class PredictionCollector:
    """Collect the predictions of a pass that something else runs: `batches.on_output = collector`."""

    def __init__(self, batches: Batches, kind: str = "classification"):
        self.batches, self.kind = batches, kind
        count = sum(len(group) for group in batches.positions)
        self.values, self.losses = np.zeros(count), np.zeros(count)

    def __call__(self, number: int, output: ModelOutput) -> None:
        """Take the output of the batch with this number."""
        positions = list(self.batches.positions[number])
        logits = output.logits.detach().float()
        labels = self.batches[number]["labels"].to(logits.device)
        values, losses = _values_and_losses(self.kind, logits, labels)
        self.values[positions] = values.double().cpu().numpy()
        self.losses[positions] = losses.double().cpu().numpy()

    def predictions(self) -> Predictions:
        """Return what all processes collected."""
        from ..core import distributed

        return Predictions(distributed.all_sum_array(self.values), distributed.all_sum_array(self.losses))


def _values_and_losses(kind: str, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    from torch.nn import functional as F

    if kind == "classification":
        return logits.argmax(-1), F.cross_entropy(logits, labels, reduction="none")
    if kind == "regression":
        value = logits.squeeze(-1)
        return value, (value - labels).square()
    # The mean loss of a block's tokens is also its prediction: no other is of use later.
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none").mean(1)
    return losses, losses


def pack(values: np.ndarray, kind: str) -> str | list[float]:
    """Shorten predictions or labels for a row: one base-36 digit per example where the classes allow it."""
    if kind == "classification":
        classes = values.astype(int)
        if not classes.size or classes.max() < len(DIGITS):
            return "".join(DIGITS[i] for i in classes)
        return classes.tolist()
    return [float(f"{value:.7g}") for value in values]


def unpack(packed: str | Sequence[float]) -> np.ndarray:
    """Return the predictions or labels that `pack` shortened."""
    if not isinstance(packed, str):
        return np.asarray(packed, dtype=np.float64)
    known = np.full(256, -1, dtype=np.int16)
    known[np.frombuffer(DIGITS.encode(), dtype=np.uint8)] = range(len(DIGITS))
    classes = known[np.frombuffer(packed.encode(), dtype=np.uint8)]
    if (classes < 0).any():
        raise DataError("packed classes are written as digits 0-9 and a-z")
    return classes
