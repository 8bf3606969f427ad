"""What a model predicts: one prediction and one loss for every example, and the metrics made of them.

Torch is imported when a model is run, not to read predictions from files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import DataError, NonFiniteError
from ..tasks.task import SCALES
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

    def metrics(self, kind: str, truth: np.ndarray | None) -> dict[str, float | None]:
        """Compute every metric of a kind of task, and the mean loss; None for a metric that is undefined."""
        found = {name: metrics.load(name).defined(truth, self.values) for name in metrics.for_kind(kind)}
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
    from ..engine.memory import Memory
    from ..engine.passes import frozen_eval

    collector = PredictionCollector(batches, kind)
    device = next(model.parameters()).device
    mine = distributed.my_share([int(batch["input_ids"].numel()) for batch in batches])
    if batches.stream:  # one after the other, so by one process
        mine = [] if distributed.rank() else list(range(len(batches)))
    with (
        naming_layer(model, batches),
        Memory().carried(model) if batches.stream else nullcontext(),
        frozen_eval(model),
        first_token_only(model),
        torch.inference_mode(),
    ):
        for number in mine:
            if on_batch:
                on_batch(number)
            here = {name: value.to(device) for name, value in batches[number].items()}
            collector(number, model(**model_inputs(here, labels=False)))
    return collector.predictions()


@contextmanager
def naming_layer(model: nn.Module, batches: Batches) -> Iterator[None]:
    """Let an error about predictions that are not finite name the layer they come from."""
    try:
        yield
    except NonFiniteError as error:
        name = first_nonfinite(model, batches[error.batch])
        module = model.get_submodule(name or "")
        bad = [own for own, p in module.named_parameters() if not p.isfinite().all()] if name else []
        where = f", first in the output of {name}" if name else ""
        why = f", whose {', '.join(bad[:3])} is not finite either" if bad else ""
        raise NonFiniteError(
            f"{error} (batch {error.batch}{where}{why}), so no metric is computed. The weights are damaged, "
            "or a training diverged: repeat it with a lower `lr`",
            error.batch,
            name,
        ) from None


def first_nonfinite(model: nn.Module, batch: Mapping[str, Any]) -> str | None:
    """Return the first module, in the order of computing, whose output is not finite; None if all are."""
    import torch

    from ..core.batches import model_inputs
    from ..engine.passes import frozen_eval

    found: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            tensors = output if isinstance(output, (tuple, list)) else [output]
            floats = [t for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point()]
            if not all(t.isfinite().all() for t in floats):
                found.append(name)

        return hook

    hooks = [m.register_forward_hook(watch(name)) for name, m in model.named_modules() if name]
    try:
        device = next(model.parameters()).device
        inputs = {name: value.to(device) for name, value in model_inputs(batch, labels=False).items()}
        with frozen_eval(model), torch.inference_mode():
            model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


class PredictionCollector:
    """Collect the predictions of a pass that something else runs: `batches.on_output = collector`."""

    def __init__(self, batches: Batches, kind: str = "classification"):
        self.batches, self.kind = batches, kind
        count = sum(len(group) for group in batches.positions)
        self.values, self.losses = np.zeros(count), np.zeros(count)

    def __call__(self, number: int, output: ModelOutput) -> None:
        """Take the output of the batch with this number."""
        positions = list(self.batches.positions[number])
        from ..core.batches import SCORES

        batch = self.batches[number]
        logits = self.batches.read(output, batch).detach().float()
        labels = batch[SCORES if SCORES in batch else "labels"].to(logits.device)
        values, losses = _values_and_losses(self.kind, logits, labels)
        used = losses if self.kind == "language" else logits  # a vocabulary may be masked with −inf
        if not used.isfinite().all():
            raise NonFiniteError("the model's predictions are NaN or infinite", number)
        self.values[positions] = values.double().cpu().numpy()
        self.losses[positions] = losses.double().cpu().numpy()

    def predictions(self) -> Predictions:
        """Return what all processes collected."""
        from ..core import distributed

        values, losses = distributed.all_sum_array(self.values), distributed.all_sum_array(self.losses)
        weights = self._weights()
        return Predictions(values * weights, losses * weights)

    def _weights(self) -> np.ndarray | float:
        """Return the words of each block as a multiple of their mean, so that the mean is that per word."""
        if self.kind != "language":
            return 1.0
        words = np.zeros(len(self.values))
        for positions, batch in zip(self.batches.positions, self.batches):
            words[list(positions)] = batch["labels"].shape[1] - 1
        return words / words.mean()


def _values_and_losses(kind: str, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    import torch
    from torch.nn import functional as F

    if kind == "classification":
        return logits.argmax(-1), F.cross_entropy(logits, labels, reduction="none")
    if kind in SCALES:
        value = logits.squeeze(-1)
        return value, (value - labels).square()
    # The mean loss of a block's tokens is also its prediction: no other is of use later.
    # One block at a time: the logits of a batch are the largest tensor there is, and copies are made of them.
    words = labels.shape[1] - 1  # labels may hold the token after the block
    losses = torch.stack([F.cross_entropy(one[:words], label[1:]) for one, label in zip(logits, labels)])
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
