"""Norms of weight gradients, head by head and example by example, without computing a weight gradient.

For a linear layer y = xW the gradient of one example is δᵀx, with x its inputs [tokens, width] and δ the
gradient of y [tokens, channels]. Its squared norm is the sum over pairs of tokens of (δδᵀ)(xxᵀ): two small
tokens × tokens matrices instead of a channels × width one. So one backward pass through activations gives
the norm of every head, role and example of a batch.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import Site, wide
from ..core.batches import Batches, Loss, examples_in
from ..core.errors import DataError
from .passes import Use, run_backward

Norms = dict[str, dict[str, Tensor]]  # site -> role -> norms
ROLES = ("q", "k", "v")


def gradient_norms(
    model: nn.Module,
    sites: Sequence[Site],
    batch: Mapping[str, Any],
    objective: Callable[[Any], Tensor],
    *,
    summed: bool = False,
) -> Norms:
    """Return {site: {role: norms}}, [examples, units] in float64, or [1, units] of the `summed` gradient.

    `objective` turns the model's output into a sum over examples, so that rows do not mix.
    """

    def value(out: Any, _: Any) -> Tensor:
        return objective(out)

    one = Batches([dict(batch)])
    if summed:
        return pooled_norms(model, sites, one, [0], value)
    return example_norms(model, sites, one, 0, value)


def example_norms(
    model: nn.Module,
    sites: Sequence[Site],
    batches: Batches,
    number: int,
    objective: Loss,
    *,
    bias: bool = False,
    order: float = 2.0,
) -> Norms:
    """Return the norms of every example of one batch, [examples, units]."""
    size = examples_in(batches[number])
    seen = run_backward(model, sites, _modules(sites), batches, number, objective)
    grams: dict[tuple[int, ...], Tensor] = {}

    def norms(site: Site, role: str) -> Tensor:
        uses = seen[site.module(role)]
        if not uses:  # it never ran: no head is left, or nothing to attend to
            return torch.zeros(size, site.units, dtype=torch.float64)
        x, delta = _concatenate(uses, size, site.name)
        own = _by_unit(delta, site.index(role))  # [batch, tokens, units, channels]
        biased = bias and _has_bias(site, role)
        if order == 2 and _gram_is_cheaper(x, own):
            key = tuple(part for x, _ in uses for part in (x.data_ptr(), *x.shape))
            if key not in grams:  # q, k and v read the same input
                grams.clear()
                grams[key] = x @ x.transpose(1, 2)  # [batch, tokens, tokens]
            return _by_gram(grams[key], own, biased).double().cpu()
        each = [_norm(_gradient(a, d, biased), order) for a, d in zip(x, own)]
        return torch.stack(each).double().cpu()

    return {site.name: {role: norms(site, role) for role in ROLES} for site in sites}


def pooled_norms(
    model: nn.Module,
    sites: Sequence[Site],
    batches: Batches,
    group: Sequence[int],
    objective: Loss,
    *,
    bias: bool = False,
    order: float = 2.0,
) -> Norms:
    """Return the norms of the one gradient of several batches together, [1, units]."""
    total: dict[tuple[str, str], Tensor] = {}
    for number in group:
        seen = run_backward(model, sites, _modules(sites), batches, number, objective)
        for site, role in product(sites, ROLES):
            if uses := seen[site.module(role)]:
                found = _pooled(uses, site.index(role), bias and _has_bias(site, role))
                key = (site.name, role)
                total[key] = total[key] + found if key in total else found

    def norms(site: Site, role: str) -> Tensor:
        if (site.name, role) not in total:
            return torch.zeros(1, site.units, dtype=torch.float64)
        return _norm(total[site.name, role], order)[None].double().cpu()

    return {site.name: {role: norms(site, role) for role in ROLES} for site in sites}


def _modules(sites: Sequence[Site]) -> list[nn.Module]:
    return list(dict.fromkeys(site.module(role) for site in sites for role in ROLES))


def _by_unit(delta: Tensor, index: Tensor) -> Tensor:
    """Return […, units, channels]; a view where the units are contiguous and in order."""
    if index.numel() == delta.shape[-1] and (index.flatten().diff() == 1).all():
        return delta.unflatten(-1, tuple(index.shape))
    return delta[..., index.to(delta.device)]


def _has_bias(site: Site, role: str) -> bool:
    return getattr(site.module(role), "bias", None) is not None


def _concatenate(uses: list[Use], size: int, name: str) -> tuple[Tensor, Tensor]:
    """Join the uses of a module that runs several times in a pass (ALBERT): they have one gradient."""
    if any(len(x) != size for x, _ in uses):
        raise DataError(
            f"{name}: a weight is shared by the examples of a batch (relative positions), so their gradients "
            "cannot be separated. Use batches of one example, or pooling='batch'"
        )
    x, delta = uses[0] if len(uses) == 1 else (torch.cat(each, 1) for each in zip(*uses))
    return wide(x), wide(delta)


def _gram_is_cheaper(x: Tensor, own: Tensor) -> bool:
    tokens, width, channels = x.shape[1], x.shape[2], own.shape[2] * own.shape[3]
    return tokens * (channels + width / 3) < channels * width


def _by_gram(gram: Tensor, own: Tensor, biased: bool) -> Tensor:
    """Return [batch, units] from xxᵀ; a bias is one more input that is always 1."""
    pairs = torch.einsum("btuc,bsuc->buts", own, own)
    squares = (pairs * (gram + 1 if biased else gram)[:, None]).sum((2, 3))
    return squares.clamp_min(0).sqrt()


def _pooled(uses: list[Use], index: Tensor, biased: bool) -> Tensor:
    """Return the gradient itself, of all uses and examples, [units, channels, width]."""
    x, delta = (wide(torch.cat([t.reshape(-1, t.shape[-1]) for t in each])) for each in zip(*uses))
    return _gradient(x, _by_unit(delta, index), biased)


def _gradient(x: Tensor, delta: Tensor, biased: bool) -> Tensor:
    """Return [units, channels, width (and 1 for the bias)]; δ is [tokens, units, channels]."""
    gradient = torch.einsum("tuc,tm->ucm", delta, x)
    if biased:
        gradient = torch.cat([gradient, delta.sum(0)[..., None]], -1)
    return gradient


def _norm(gradient: Tensor, order: float) -> Tensor:
    return torch.linalg.vector_norm(gradient.flatten(1), order, dim=1)
