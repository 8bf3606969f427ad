"""Norms of weight gradients, head by head and example by example, without computing a weight gradient.

For a linear layer y = xW the gradient of one example is δᵀx, with x its inputs [tokens, width] and δ the
gradient of y [tokens, channels]. Its squared length is the sum over pairs of tokens of (δδᵀ)(xxᵀ): two
little tokens × tokens matrices instead of a channels × width one. So one backward pass through activations
gives the norm of every head, role and example of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .core import model_inputs
from .errors import EspalierError

Call = tuple[Tensor, Tensor]  # inputs and outputs of one use of a module


@contextmanager
def watching(modules: Sequence[nn.Module]) -> Iterator[dict[nn.Module, list[Call]]]:
    """Keep what goes into and comes out of each module; outputs take gradients even if no weight does."""
    calls: dict[nn.Module, list[Call]] = {module: [] for module in modules}

    def see(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        if out.requires_grad:
            calls[module].append((args[0].detach(), out))
            return out
        out = out.detach().requires_grad_()  # below it nothing is differentiated at all
        calls[module].append((args[0].detach(), out))
        return out.clone()  # the model may write into what it got (Wav2Vec2 does)

    handles = [module.register_forward_hook(see) for module in calls]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def gradient_norms(
    model: nn.Module,
    sites: Sequence[Any],
    batch: Mapping[str, Any],
    objective: Callable[[Any], Tensor],
    *,
    roles: Sequence[str] = ("q", "k", "v"),
    bias: bool = False,
    order: float = 2.0,
    summed: bool = False,
) -> dict[str, dict[str, Tensor]]:
    """{site: {role: norms}}, [examples, units] in float64; `summed`: of the batch's one gradient, [1, units].

    `objective` turns the model's output into a sum over examples, so that rows do not mix.
    """
    modules = list(dict.fromkeys(site.module(role) for site in sites for role in roles))
    with watching(modules) as calls, torch.enable_grad():
        value = objective(model(**model_inputs(batch)))
        uses = [(module, x, y) for module, seen in calls.items() for x, y in seen]
        grads = torch.autograd.grad(value, [y for _, _, y in uses], allow_unused=True)
    deltas: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {module: [] for module in modules}
    for (module, x, y), delta in zip(uses, grads):
        deltas[module].append((x, torch.zeros_like(y) if delta is None else delta))
    size = next(len(v) for v in batch.values() if isinstance(v, Tensor))
    grams: dict[tuple[int, ...], Tensor] = {}
    out: dict[str, dict[str, Tensor]] = {}
    for site in sites:
        out[site.name] = {}
        for role in roles:
            if not deltas[
                site.module(role)
            ]:  # it never ran: no head is left, or nothing to attend to
                rows = 1 if summed else size
                out[site.name][role] = torch.zeros(rows, site.units, dtype=torch.float64)
                continue
            x, delta = _joined(deltas[site.module(role)], size, summed, site.name)
            own = delta[..., site.index(role).to(delta.device)]  # [batch, tokens, units, channels]
            if summed:
                x, own = x.flatten(0, 1)[None], own.flatten(0, 1)[None]
            biased = bias and getattr(site.module(role), "bias", None) is not None
            if order == 2 and not summed and _gram_is_cheaper(x, own):
                key = tuple(id(x) for x, _ in deltas[site.module(role)])
                if key not in grams:  # q, k and v read the same input
                    grams = {key: x @ x.transpose(1, 2)}  # [batch, tokens, tokens]
                norms = _by_gram(grams[key], own, biased)
            else:
                norms = _directly(x, own, biased, order)
            out[site.name][role] = norms.double().cpu()
    return out


def _joined(
    uses: list[tuple[Tensor, Tensor]], size: int, summed: bool, name: str
) -> tuple[Tensor, Tensor]:
    """A module that runs several times in a pass (ALBERT) has one gradient: its uses in a row, as tokens."""
    if summed:
        uses = [(x.reshape(1, -1, x.shape[-1]), d.reshape(1, -1, d.shape[-1])) for x, d in uses]
    elif any(len(x) != size for x, _ in uses):
        raise EspalierError(
            f"{name}: a weight is shared by the examples of a batch (relative positions), so their gradients "
            "cannot be told apart. Use batches of one example, or pooling='batch'"
        )
    if len(uses) == 1:
        return uses[0]
    return torch.cat([x for x, _ in uses], 1), torch.cat([d for _, d in uses], 1)


def _gram_is_cheaper(x: Tensor, own: Tensor) -> bool:
    tokens, width, channels = x.shape[1], x.shape[2], own.shape[2] * own.shape[3]
    return tokens * (channels + width / 3) < channels * width


def _by_gram(gram: Tensor, own: Tensor, biased: bool) -> Tensor:
    """[batch, units] from xxᵀ; a bias is one more input that is always 1."""
    pairs = torch.einsum("btuc,bsuc->buts", own, own)
    squares = (pairs * (gram + 1 if biased else gram)[:, None]).sum((2, 3))
    return squares.clamp_min(0).sqrt()


def _directly(x: Tensor, own: Tensor, biased: bool, order: float) -> Tensor:
    """[batch, units] from the gradients themselves, one example at a time."""
    norms = []
    for inputs, delta in zip(x, own):
        gradient = torch.einsum("tuc,tm->ucm", delta, inputs)
        if biased:
            gradient = torch.cat([gradient, delta.sum(0)[..., None]], -1)
        norms.append(torch.linalg.vector_norm(gradient.flatten(1), order, dim=1))
    return torch.stack(norms)
