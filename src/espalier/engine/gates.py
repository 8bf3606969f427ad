"""Gates on units, and the model as it would be after a cut. All of these restore the model afterwards."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..architectures.site import Site, WeightSite
from ..architectures.sites import ALSO, CUTTABLE, AnyUnits, check_mask
from ..architectures.sites import sites as find_sites
from ..architectures.stack import Part, StackSite
from ..core.errors import InvalidValueError
from ..core.mask import Mask
from ..core.types import PreTrainedModel


@contextmanager
def gated(
    sites: Sequence[Site | StackSite], values: Mapping[str, Tensor] | None = None
) -> Iterator[dict[str, Tensor]]:
    """Multiply each unit by a gate just before it is written back. Gates are leaves that take gradients.

    A gate is [units], or [batch, units] for one gradient per example; without `values` all are 1. A block
    between 0 and 1 gives so much of what it computes, and of what it read for the rest.
    """
    gates: dict[str, Tensor] = {}
    with ExitStack() as hooks:
        for site in sites:
            weight = _weight_of(site)
            start = torch.ones(site.shape) if values is None else values[site.name]
            if start.shape[-1] != site.units:
                raise InvalidValueError(
                    f"{site.name} has {site.units} units, its gate in `values` {start.shape[-1]}", "values"
                )
            dtype = weight.dtype if weight.dtype == torch.float64 else torch.float32
            gates[site.name] = gate = start.detach().to(weight.device, dtype, copy=True).requires_grad_()
            if isinstance(site, Site):
                hooks.enter_context(multiplied(site, gate))
                continue
            for unit, part in enumerate(site.parts):
                hooks.enter_context(_mixed(part, gate[..., unit]))
        yield gates


def _weight_of(site: Site | StackSite) -> Tensor:
    if isinstance(site, Site):
        return cast(Tensor, site.module("write").weight)
    return site.parts[0].parameters[0] if site.parts else torch.ones(1)


def _mixed(part: Part, gate: Tensor) -> RemovableHandle:
    """Give a share of what a block computes and the rest of what it read, or a share of a sublayer."""

    def mix(_: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
        new = out[0] if isinstance(out, tuple) else out
        old = args[0] if args else kwargs["hidden_states"]
        old = old[:, : new.shape[1]] if part.sublayer is None else torch.zeros_like(new)
        share = gate.to(new)
        if share.dim() and len(new) != len(share):  # [batch * tokens, channels] in OPT
            share = share.repeat_interleave(len(new) // len(share), 0)
        new = torch.lerp(old, new, share.view(-1, *(1,) * (new.dim() - 1)))  # exact at 0 and at 1
        return (new, *out[1:]) if isinstance(out, tuple) else new

    mix.is_gate = True  # type: ignore[attr-defined]
    return part.writer.register_forward_hook(mix, with_kwargs=True)


def multiplied(site: Site, factor: Tensor | Callable[[], Tensor]) -> RemovableHandle:
    """Multiply each unit by a factor just before it is written back, until the hook is removed.

    The factor is [units], or [batch, units]; a function is called in every pass.
    """
    writer, owners = site.module("write"), site.owners()

    def multiply(_: nn.Module, args: Any) -> Any:
        x = args[0]  # [batch, tokens, channels], or [batch * tokens, channels] in OPT
        by_unit = factor if isinstance(factor, Tensor) else factor()
        by_channel = by_unit[..., owners.to(x.device)].to(x.dtype)
        if by_channel.dim() == 2 and x.dim() == 3:
            by_channel = by_channel[:, None]
        elif by_channel.dim() == 2:
            by_channel = by_channel.repeat_interleave(len(x) // len(by_channel), 0)
        return (x * by_channel, *args[1:])

    multiply.is_gate = True  # type: ignore[attr-defined]
    return writer.register_forward_pre_hook(multiply)


@contextmanager
def masked(model: PreTrainedModel | Sequence[AnyUnits], mask: Mask) -> Iterator[None]:
    """Make the model compute as after the cut, reversibly: the working replacement of `head_mask=`.

    >>> with masked(model, Mask.without(sites(model, "heads"), {0: [2, 3]})):
    ...     logits = model(**batch).logits

    `model` is a model, or the sites of one. A mask of single weights sets the removed ones to zero.
    """
    found = {site.name: site for site in _sites_for(model, mask)}
    check_mask(mask, found)
    named = [found[name] for name in mask]
    matrices = [site for site in named if isinstance(site, WeightSite)]
    saved = [site.linear.weight.detach().clone() for site in matrices]
    with gated([site for site in named if not isinstance(site, WeightSite)], mask) as gates:
        for gate in gates.values():
            gate.requires_grad_(False)
        # Not through .data: autograd and the activation cache must see the change.
        with torch.no_grad():
            for site in matrices:
                site.linear.weight.mul_(mask[site.name].to(site.linear.weight))
        try:
            yield
        finally:
            with torch.no_grad():
                for site, weight in zip(matrices, saved):
                    site.linear.weight.copy_(weight)


def _sites_for(model: PreTrainedModel | Sequence[AnyUnits], mask: Mask) -> Sequence[AnyUnits]:
    if not isinstance(model, nn.Module):
        return list(model)
    units = find_sites(model, *CUTTABLE)
    if isinstance(mask, Mapping) and set(mask) <= {site.name for site in units}:
        return units
    return [*units, *find_sites(model, "weights", also=ALSO)]


@contextmanager
def watching_attention(
    model: PreTrainedModel, sites: Sequence[Site], see: Callable[[Site, Tensor], None]
) -> Iterator[None]:
    """Call `see(site, maps)` for every attention computed inside; maps are [batch, heads, to, from].

    Fast attention never computes the maps, so eager attention is used inside.
    """

    def watch(_: nn.Module, args: Any, out: Any, site: Site) -> None:
        if isinstance(out[-1], Tensor) and out[-1].shape[1]:  # not of a layer without heads
            see(site, out[-1])

    def ask(module: nn.Module, args: Any, kwargs: Any) -> Any:
        # Some attentions return their maps only when asked. Asking the whole model would make transformers
        # leave hooks of its own in it.
        plain = getattr(type(module), "ungrafted", type(module))
        names = list(signature(plain.forward).parameters)[1:]
        given = {**dict(zip(names, args)), **kwargs}
        return (), {**given, "output_attentions": True} if "output_attentions" in names else given

    with ExitStack() as hooks:
        for site in sites:
            hooks.enter_context(site.attention.register_forward_pre_hook(ask, with_kwargs=True))
            hooks.enter_context(site.attention.register_forward_hook(partial(watch, site=site)))
        with eager(model):
            yield


@contextmanager
def eager(model: PreTrainedModel) -> Iterator[None]:
    """Use eager attention inside, which computes every map. Plain modules have none."""
    if not hasattr(model, "set_attn_implementation"):
        yield
        return
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation("eager")
        yield
    finally:
        model.set_attn_implementation(before)
