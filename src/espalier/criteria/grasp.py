"""GraSP: w·Hg, by which removing the weight weakens the gradient (https://arxiv.org/abs/2002.07376).

When w shrinks, ‖g‖² rises at the rate −2·w·(Hg): the paper removes the largest −w·(Hg), so that what is left
learns fast, and bigger means keep for w·(Hg). g and H are those of the mean loss over all examples and of the
scored weights alone. Two sweeps, the second differentiated twice, with attention spelled out meanwhile.

temperature   divides the logits, 200 in the paper; 1 takes the loss as it is
"""

import torch
from torch.nn import functional as F

from ..core.batches import examples_in, model_inputs, model_loss
from ..core.errors import EspalierError
from ..engine.gates import eager
from ..engine.weight_gradients import add_gradients
from . import Scores, criterion


@criterion("weights", rescored=True)
def grasp(model, sites, batches, *, temperature: float = 200.0) -> Scores:  # type: ignore[no-untyped-def]
    if temperature <= 0:
        raise EspalierError(f"a temperature is above zero; got {temperature!r}")
    loss = batches.loss if temperature == 1 else _tempered(batches.loss, temperature)
    with eager(model), torch.enable_grad():
        add_gradients(model, sites, batches, "grasp", loss)
        weights = list({id(w): w for site in sites for w in site.matrices}.values())
        slope = [w.grad for w in weights]
        for w in weights:
            w.grad = torch.zeros_like(w)
        examples = sum(map(examples_in, batches))
        for batch in batches:
            value = loss(model(**model_inputs(batch)), batch) * (examples_in(batch) / examples)
            grads = torch.autograd.grad(value, weights, create_graph=True, allow_unused=True)
            pairs = [(g * s).sum() for g, s in zip(grads, slope) if g is not None and g.requires_grad]
            # H·g is the gradient of g·(g held still).
            products = torch.autograd.grad(sum(pairs), weights, allow_unused=True)
            for w, product in zip(weights, products):
                if product is not None:
                    w.grad += product
    return Scores({site.name: site.fold(lambda w, h: w * h) for site in sites})


def _tempered(loss, temperature):  # type: ignore[no-untyped-def]
    """The same loss of logits that are divided by the temperature."""

    def cooler(out, batch):  # type: ignore[no-untyped-def]
        logits = getattr(out, "logits", None)
        if logits is None:
            raise EspalierError(
                f"grasp divides the logits by {temperature:g}, and this model returns none. "
                "Take the loss as it is: temperature=1"
            )
        if loss is not model_loss:
            return loss(type(out)(**{**out, "logits": logits / temperature, "loss": None}), batch)
        own = model_loss(out, batch)
        if logits.dtype != torch.float64:
            logits = logits.float()
        for form in (_plain, _next_token):
            value = form(logits, batch.get("labels"))
            # The model's own loss says which of the two it computes.
            if value is not None and torch.isclose(value, own.to(value), rtol=1e-3, atol=1e-6):
                return form(logits / temperature, batch["labels"])
        raise EspalierError(
            "grasp divides the logits by a temperature, and this model's loss is no cross-entropy of its "
            "logits. Take the loss as it is: temperature=1; or say how to compute it from out.logits: "
            "Batches(..., loss=lambda out, batch: ...)"
        )

    return cooler


def _plain(logits, labels):  # type: ignore[no-untyped-def]
    """Of each example, or of each token."""
    if labels is None or labels.is_floating_point() or logits.shape[:-1] != labels.shape:
        return None
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def _next_token(logits, labels):  # type: ignore[no-untyped-def]
    if labels is None or labels.dim() != 2 or logits.shape[:-1] != labels.shape:
        return None
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
