"""Instruments: gates on units, and the model as it would be after a cut. All leave the model as found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.table import sites as find_sites
from ..core.errors import EspalierError, suggest
from ..core.mask import Mask


@contextmanager
def gated(sites: Sequence[Any], values: Mapping[str, Tensor] | None = None) -> Iterator[dict[str, Tensor]]:
    """Multiply each unit by a gate just before it is written back. Gates are leaves that take gradients.

    A gate is [units], or [batch, units] for one gradient per example; without `values` all are open.
    """
    gates: dict[str, Tensor] = {}
    handles = []
    try:
        for site in sites:
            weight = site.module("write").weight
            start = torch.ones(site.shape) if values is None else values[site.name]
            if start.shape[-1] != site.units:
                raise EspalierError(f"{site.name} has {site.units} units, its gate {start.shape[-1]}")
            kind = weight.dtype if weight.dtype == torch.float64 else torch.float32
            gate = start.detach().to(weight.device, kind, copy=True).requires_grad_()
            gates[site.name] = gate

            owners = site.owners().to(weight.device)

            def close(_: nn.Module, args: Any, owners: Tensor = owners, gate: Tensor = gate) -> Any:
                x = args[0]  # [batch, tokens, channels], or [batch * tokens, channels] in OPT
                open_ = gate[..., owners].to(x.dtype)
                if open_.dim() == 2:
                    open_ = open_[:, None] if x.dim() == 3 else _by_token(open_, len(x))
                return (x * open_, *args[1:])

            close.is_gate = True  # type: ignore[attr-defined]
            handles.append(site.module("write").register_forward_pre_hook(close))
        yield gates
    finally:
        for handle in handles:
            handle.remove()


def _by_token(gate: Tensor, rows: int) -> Tensor:
    return gate.repeat_interleave(rows // len(gate), 0)


@contextmanager
def masked(model: Any, mask: Mask) -> Iterator[None]:
    """The model as it would be after the cut, reversibly: the working replacement of `head_mask=`.

    >>> with masked(model, Mask.without(sites(model, "heads"), {0: [2, 3]})):
    ...     logits = model(**batch).logits

    `model` is a model, or the sites of one. A mask of single weights closes those weights.
    """
    if not isinstance(mask, Mapping):
        raise EspalierError(f"masked takes a Mask; got {type(mask).__name__}")
    found = {site.name: site for site in _sites_for(model, mask)}
    if not mask:
        raise EspalierError("the mask is empty: it names no site, so nothing would be closed")
    for name in mask:
        if name not in found:
            raise EspalierError(
                f"the mask names {name!r}, which is no site of this model{suggest(name, found)}"
            )
        if tuple(mask[name].shape) != found[name].shape:
            raise EspalierError(f"{name} has shape {found[name].shape}, its mask {tuple(mask[name].shape)}")
    units = [found[n] for n in mask if found[n].target != "weights"]
    matrices = [found[n] for n in mask if found[n].target == "weights"]
    saved = {site.name: site.linear.weight.detach().clone() for site in matrices}
    with gated(units, mask) as gates:
        for gate in gates.values():
            gate.requires_grad_(False)
        # Not through .data: autograd, and passes that begin where the model changed, must see it change.
        with torch.no_grad():
            for site in matrices:
                site.linear.weight.mul_(mask[site.name].to(site.linear.weight))
        try:
            yield
        finally:
            with torch.no_grad():
                for site in matrices:
                    site.linear.weight.copy_(saved[site.name])


def _sites_for(model: Any, mask: Mask) -> Sequence[Any]:
    if not isinstance(model, nn.Module):
        return list(model)
    units = find_sites(model, "heads", "neurons")
    if set(mask) <= {site.name for site in units}:
        return units
    return units + find_sites(model, "weights", embeddings=True, head=True, norms=True)


@contextmanager
def watching_attention(
    model: Any, sites: Sequence[Any], see: Callable[[Any, Tensor], None]
) -> Iterator[None]:
    """Call `see(site, maps)` for every attention computed inside; maps are [batch, heads, to, from].

    Fast attention never makes the maps, so it is switched to eager meanwhile.
    """
    handles = []

    def watch(_: nn.Module, args: Any, out: Any, site: Any) -> None:
        if not isinstance(out[-1], Tensor):  # a layer without heads has no maps
            return
        see(site, out[-1])

    def ask(module: Any, args: Any, kwargs: Any) -> Any:
        # Some attentions return their maps only when asked. Asking the whole model would make transformers
        # leave hooks of its own in it.
        plain = getattr(type(module), "ungrafted", type(module))
        names = list(signature(plain.forward).parameters)[1:]
        given = {**dict(zip(names, args)), **kwargs}
        return (), {**given, "output_attentions": True} if "output_attentions" in names else given

    try:
        for site in sites:
            handles.append(site.attention.register_forward_pre_hook(ask, with_kwargs=True))
            handles.append(site.attention.register_forward_hook(partial(watch, site=site)))
        with eager(model):
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def eager(model: Any) -> Iterator[None]:
    """Attention spelled out, map by map; afterwards as it was."""
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation("eager")
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """eval() and frozen weights inside; the modes, requires_grad and gradients of before, after."""
    modes = [(module, module.training) for module in model.modules()]
    wanted = [(p, p.requires_grad, p.grad) for p in model.parameters()]
    model.eval()
    for p, _, _ in wanted:
        p.requires_grad_(False)
        p.grad = None
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for p, grad, value in wanted:
            p.requires_grad_(grad)
            p.grad = value
