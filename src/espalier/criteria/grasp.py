"""GraSP: w·Hg, by which removing the weight weakens the gradient (https://arxiv.org/abs/2002.07376).

When w shrinks, ‖g‖² rises at the rate −2·w·(Hg): the paper removes the largest −w·(Hg), so that what is left
learns fast, and bigger means keep for w·(Hg). g and H are those of the mean loss over all examples and of the
scored weights alone. Two sweeps, the second differentiated twice, with eager attention meanwhile.

temperature   divides the logits, 200 in the paper; 1 takes the loss as it is
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..architectures.site import WeightSite, wide
from ..core.batches import Batch, Loss, examples_in, model_inputs, model_loss
from ..core.errors import InvalidValueError, UnsupportedError
from ..engine.gates import eager
from ..engine.weight_gradients import add_gradients
from . import Batches, Scores, criterion


@criterion(
    "weights",
    rescored=True,
    needs_data=True,
    needs_labels=True,
    idle="zero",
    unit="fall of the squared gradient",
)
def grasp(
    model: nn.Module, sites: Sequence[WeightSite], batches: Batches, *, temperature: float = 200.0
) -> Scores:
    if temperature <= 0:
        raise InvalidValueError(f"`temperature` is above zero; got {temperature!r}", "temperature")
    loss = batches.loss if temperature == 1 else _tempered(batches.loss, temperature)
    with eager(model), torch.enable_grad():
        weights = add_gradients(model, sites, batches, "grasp", loss)
        gradients = [w.grad for w in weights if w.grad is not None]  # all have one
        totals = [torch.zeros_like(w) for w in weights]
        for batch in batches:
            value = loss(model(**model_inputs(batch)), batch) * (examples_in(batch) / batches.examples)
            grads = torch.autograd.grad(value, weights, create_graph=True, allow_unused=True)
            pairs = [(g * s).sum() for g, s in zip(grads, gradients) if g is not None and g.requires_grad]
            # H·g is the gradient of g·(g held constant)
            products = torch.autograd.grad(torch.stack(pairs).sum(), weights, allow_unused=True)
            for total, product in zip(totals, products):
                if product is not None:
                    total += product
    product_of = {id(w): total for w, total in zip(weights, totals)}
    return Scores({s.name: s.fold(lambda w, _: w) * product_of[id(s.linear.weight)] for s in sites})


def _tempered(loss: Loss, temperature: float) -> Loss:
    """Return the same loss of logits that are divided by the temperature."""

    def tempered(out: Any, batch: Batch) -> Tensor:
        logits = getattr(out, "logits", None)
        if logits is None:
            raise UnsupportedError(
                f"grasp divides the logits by {temperature:g}, and this model returns none. "
                "Use the loss as it is: temperature=1"
            )
        if loss is not model_loss:
            return loss(type(out)(**{**out, "logits": logits / temperature, "loss": None}), batch)
        own = model_loss(out, batch)
        logits = wide(logits)
        for form in (_plain, _next_token):
            value = form(logits, batch.get("labels"))
            # which of the two the model computes shows in its own loss
            if value is not None and torch.isclose(value, own.to(value), rtol=1e-3, atol=1e-6):
                return form(logits / temperature, batch["labels"])  # type: ignore[return-value]
        raise UnsupportedError(
            "grasp divides the logits by a temperature, and this model's loss is not their cross-entropy. "
            "Use the loss as it is: temperature=1; or compute it from out.logits: "
            "Batches(..., loss=lambda out, batch: ...)"
        )

    return tempered


def _plain(logits: Tensor, labels: Tensor | None) -> Tensor | None:
    """Return the cross-entropy of each example, or of each token; None if the labels do not fit."""
    if labels is None or labels.is_floating_point() or logits.shape[:-1] != labels.shape:
        return None
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def _next_token(logits: Tensor, labels: Tensor | None) -> Tensor | None:
    if labels is None or labels.dim() != 2 or logits.shape[:-1] != labels.shape:
        return None
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
