"""Gradients of weights: of the mean loss, and of every example by itself, squared.

The loss is taken to be the mean over the examples of a batch, as a classifier's is; then nothing depends on
how examples are put into batches. A language model's is a mean over tokens: if examples have different
numbers of them, give `Batches` a loss that averages by example.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..architectures.site import AnySite, WeightSite
from ..core.batches import Batch, Batches, Loss, examples_in, model_inputs, require_batches
from .passes import Use, watching


def trainable_weights(sites: Sequence[AnySite]) -> list[Tensor]:
    """Return every weight of the sites once, with gradients enabled and none stored."""
    found = list({id(w): w for site in sites for w in site.matrices}.values())
    for weight in found:
        weight.requires_grad_()
        weight.grad = None
    return found


def add_gradients(
    model: nn.Module, sites: Sequence[AnySite], batches: Batches, method: str, loss: Loss | None = None
) -> list[Tensor]:
    """Store the mean loss's gradient in `weight.grad`, where `site.fold` reads it; return the weights."""
    require_batches(batches, method)
    weights, loss, examples = trainable_weights(sites), loss or batches.loss, batches.examples
    with torch.enable_grad():
        for batch in batches:
            value = loss(model(**model_inputs(batch)), batch)
            (value * (examples_in(batch) / examples)).backward()
    for weight in weights:
        if weight.grad is None:  # an embedding that was not used
            weight.grad = torch.zeros_like(weight)
    return weights


def squared_gradients(
    model: nn.Module, sites: Sequence[WeightSite], batches: Batches, method: str
) -> dict[str, Tensor]:
    """Return {site: mean over examples of each one's squared gradient}, in the shape of the matrix."""
    require_batches(batches, method)
    total = {site.name: torch.zeros_like(site.fold(lambda w, _: w)) for site in sites}
    linear = [site for site in sites if site.reads in ("hidden", "encoder")]
    for batch in batches:
        left = [site for site in sites if site not in linear]
        left += _add_squares(model, linear, batches.loss, batch, total)
        if left:
            _add_one_by_one(model, left, batches.loss, batch, total)
    return {name: value.div_(batches.examples) for name, value in total.items()}


def _add_squares(
    model: nn.Module, sites: Sequence[WeightSite], loss: Loss, batch: Batch, total: dict[str, Tensor]
) -> list[WeightSite]:
    """Add squares from one backward pass, an example's gradient being δᵀx. Returns the sites left over."""
    size, left = examples_in(batch), list[WeightSite]()
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
        # A matrix that is used several times (ALBERT) has one gradient: its uses are joined along the tokens.
        x = torch.cat([use[0] for use in uses if use], 1).to(total[site.name].dtype)
        delta = torch.cat([use[1] for use in uses if use], 1).to(x.dtype)
        rows, columns = (delta, x) if site.input_axis == 1 else (x, delta)
        for a, b in zip(rows, columns):
            total[site.name] += (a.T @ b).square_()
    return left


def _by_example(x: Tensor, y: Tensor, delta: Tensor | None, size: int) -> Use | None:
    """Return inputs and gradients, [batch, tokens, ...], or None where examples cannot be separated."""
    shared = len(x) % size or (x.dim() == 3 and len(x) != size)
    if shared or y._version:  # examples read the same, or the output was changed in place
        return None
    delta = torch.zeros_like(y) if delta is None else delta
    return x.reshape(size, -1, x.shape[-1]), delta.reshape(size, -1, delta.shape[-1])


def _add_one_by_one(
    model: nn.Module, sites: Sequence[WeightSite], loss: Loss, batch: Batch, total: dict[str, Tensor]
) -> None:
    """Add squares from a backward pass per example: embeddings, norms, and what examples share."""
    size = examples_in(batch)
    weights = trainable_weights(sites)
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
