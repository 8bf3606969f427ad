"""Gradients of weights: of the mean loss, and of every example by itself, squared.

All take the loss to be the mean over the examples of a batch, as a classifier's is; then nothing depends on
how examples are put into batches. A language model's is a mean over tokens: if examples have different
numbers of them, give `Batches` a loss that averages by example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batches import Batches, examples_in, model_inputs
from ..core.errors import EspalierError
from .backward import Use, watching

Loss = Callable[[Any, Mapping[str, Any]], Tensor]


def weights_of(sites: Sequence[Any]) -> list[Tensor]:
    """Every weight of the sites once, taking gradients."""
    found = list({id(w): w for site in sites for w in site.matrices}.values())
    for weight in found:
        weight.requires_grad_()
        weight.grad = None
    return found


def add_gradients(
    model: nn.Module, sites: Sequence[Any], batches: Batches, by: str, loss: Loss | None = None
) -> None:
    """Leave the gradient of the mean loss of all examples in `weight.grad`, where `site.fold` finds it."""
    if not batches:
        raise EspalierError(f"{by} needs calibration data: give it some batches")
    weights, loss = weights_of(sites), loss or batches.loss
    examples = sum(map(examples_in, batches))
    with torch.enable_grad():
        for batch in batches:
            value = loss(model(**model_inputs(batch)), batch)
            (value * (examples_in(batch) / examples)).backward()
    for weight in weights:
        if weight.grad is None:  # it took no part: an unused embedding
            weight.grad = torch.zeros_like(weight)


def squared_gradients(model: nn.Module, sites: Sequence[Any], batches: Batches, by: str) -> dict[str, Tensor]:
    """{site: mean over examples of the squared gradient of each one's own loss}, in the matrix's shape."""
    if not batches:
        raise EspalierError(f"{by} needs calibration data: give it some batches")
    total = {site.name: torch.zeros_like(site.fold(lambda w, _: w)) for site in sites}
    linear = [site for site in sites if site.reads in ("hidden", "encoder")]
    for batch in batches:
        left = [site for site in sites if site not in linear]
        left += _add_squares(model, linear, batches.loss, batch, total)
        if left:
            _add_one_by_one(model, left, batches.loss, batch, total)
    examples = sum(map(examples_in, batches))
    return {name: value.div_(examples) for name, value in total.items()}


def _add_squares(
    model: nn.Module, sites: Sequence[Any], loss: Loss, batch: Any, total: dict[str, Tensor]
) -> list[Any]:
    """One backward pass: an example's gradient is δᵀx. Returns the sites of which that is not to be had."""
    size, left = examples_in(batch), []
    with watching([site.linear for site in sites]) as calls, torch.enable_grad():
        value = loss(model(**model_inputs(batch)), batch) * size
        outputs = [y for seen in calls.values() for _, y in seen]
        found = torch.autograd.grad(value, outputs, allow_unused=True) if outputs else ()
    grads = {id(y): grad for y, grad in zip(outputs, found)}
    for site in sites:
        uses = [_by_example(x, y, grads[id(y)], size) for x, y in calls[site.linear]]
        if not uses or None in uses:
            left.append(site)
            continue
        # A matrix that is used several times (ALBERT) has one gradient: its uses in a row, as tokens.
        x = torch.cat([use[0] for use in uses if use], 1).to(total[site.name].dtype)
        delta = torch.cat([use[1] for use in uses if use], 1).to(x.dtype)
        rows, columns = (delta, x) if site.input_axis == 1 else (x, delta)
        for a, b in zip(rows, columns):
            total[site.name] += (a.T @ b).square_()
    return left


def _by_example(x: Tensor, y: Tensor, delta: Tensor | None, size: int) -> Use | None:
    """[batch, tokens, ...] of inputs and gradients, or None where they are not to be had."""
    shared = len(x) % size or (x.dim() == 3 and len(x) != size)
    if shared or y._version:  # examples read the same, or the output was written into
        return None
    delta = torch.zeros_like(y) if delta is None else delta
    return x.reshape(size, -1, x.shape[-1]), delta.reshape(size, -1, delta.shape[-1])


def _add_one_by_one(
    model: nn.Module, sites: Sequence[Any], loss: Loss, batch: Any, total: dict[str, Tensor]
) -> None:
    """A backward pass for every example: embeddings, norms, and what the examples of a batch share."""
    size = examples_in(batch)
    weights = weights_of(sites)
    for i in range(size):
        own = {
            name: value[i : i + 1] if isinstance(value, Tensor) and value.shape[:1] == (size,) else value
            for name, value in batch.items()
        }
        with torch.enable_grad():
            value = loss(model(**model_inputs(own)), own)
            found = torch.autograd.grad(value, weights, allow_unused=True)
        for site in sites:
            weight = site.linear.weight
            grad = next(g for w, g in zip(weights, found) if w is weight)
            if grad is not None:
                total[site.name] += grad.to(total[site.name].dtype).square()
    for weight in weights:
        weight.requires_grad_(False)
