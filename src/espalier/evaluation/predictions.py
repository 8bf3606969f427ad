"""What a model answers: one prediction and one loss for every example, and the numbers made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core import distributed
from ..core.batches import Batches, model_inputs
from ..engine.first_token import first_token_only
from ..engine.gates import quiet
from .metrics import METRICS, OF_KIND

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Answers:
    """In the order of the examples, not of the batches."""

    predictions: np.ndarray  # [examples]: classes, or values on a scale
    losses: np.ndarray  # [examples], nats

    def metrics(self, kind: str, truth: np.ndarray | None) -> dict[str, float]:
        """Everything that can be said of them, and the mean loss."""
        loss = float(self.losses.mean())
        if kind == "language":
            return {"perplexity": float(np.exp(min(loss, 700.0))), "loss": loss}
        assert truth is not None
        found = {name: METRICS[name](truth, self.predictions) for name in OF_KIND[kind]}
        return {**found, "loss": loss}


def answer(
    model: nn.Module,
    batches: Batches,
    kind: str = "classification",
    begin: Callable[[int], None] | None = None,
) -> Answers:
    """One pass over the batches, without gradients; `begin` is told the number of each before it runs."""
    heard = Heard(batches, kind)
    device = next(model.parameters()).device
    mine = distributed.my_share([int(batch["input_ids"].numel()) for batch in batches])
    with quiet(model), first_token_only(model), torch.inference_mode():
        for number in mine:
            if begin:
                begin(number)
            here = {name: value.to(device) for name, value in batches[number].items()}
            heard(number, model(**model_inputs(here, labels=False)))
    return heard.answers()


class Heard:
    """Collects what a model gives out, batch by batch, from whatever pass runs it."""

    def __init__(self, batches: Batches, kind: str = "classification"):
        self.batches, self.kind = batches, kind
        count = sum(len(group) for group in batches.places)
        self.predictions, self.losses = np.zeros(count), np.zeros(count)

    def __call__(self, number: int, out: Any) -> None:
        places = list(self.batches.places[number])
        logits = out.logits.detach().float()
        labels = self.batches[number]["labels"].to(logits.device)
        guess, loss = _READ[self.kind](logits, labels)
        self.predictions[places] = guess.double().cpu().numpy()
        self.losses[places] = loss.double().cpu().numpy()

    def answers(self) -> Answers:
        """Of all distributed."""
        return Answers(distributed.all_sum_array(self.predictions), distributed.all_sum_array(self.losses))


def _classes(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return logits.argmax(-1), F.cross_entropy(logits, labels, reduction="none")


def _values(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    value = logits.squeeze(-1)
    return value, (value - labels).square()


def _tokens(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of a block's tokens; it is its own prediction, for there is no other to keep."""
    loss = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none").mean(1)
    return loss, loss


_READ: dict[str, Any] = {"classification": _classes, "regression": _values, "language": _tokens}


def packed(predictions: np.ndarray, kind: str) -> str | list[float]:
    """Short in a file: a digit for each example where the classes allow it."""
    if kind == "classification":
        whole = predictions.astype(int)
        if not whole.size or whole.max() < len(DIGITS):
            return "".join(DIGITS[i] for i in whole)
        return whole.tolist()
    return [float(f"{value:.7g}") for value in predictions]
