"""Bias absorption: units whose *input* weights are zeroed still write a constant, which a bias can take over.

A neuron with a zeroed row writes act(b)·W, a head with zeroed q, k and v writes its value bias through its
output projection: the average of equal vectors, whatever the attention. Removing such a unit is exact only if
that constant is added to the bias of the layer it writes to. (A removed unit of a mask writes nothing, which
is another model: `cut` alone is exact for that one.)

No table of activations is needed: the constants are read from one pass of the zeroed model, and what is not
constant is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import Site
from ..architectures.sites import sites
from ..core.batches import Batch, model_inputs
from ..core.errors import UnknownNameError, UnsupportedError
from ..core.mask import Mask
from ..core.types import PreTrainedModel
from ..engine.passes import frozen_eval

CLOSE = 1e-4


def zero_inputs(model: PreTrainedModel, mask: Mask) -> None:
    """Set the weights that removed units read with to zero, in place; their biases stay."""
    with torch.no_grad():
        for site, removed in _removed(model, mask).items():
            for role in site.places:
                if role != "write":
                    weight = site.module(role).weight
                    weight.index_fill_(
                        site.axis(role), site.index(role)[removed].flatten().to(weight.device), 0
                    )


def absorb(model: PreTrainedModel, mask: Mask, batch: Batch) -> None:
    """Zero what removed units read, and add the constants that they still write to biases, in place.

    Afterwards the units write nothing that is missing: `cut(model, mask)` equals the zeroed model. A model
    that is refused is left as it was.
    """
    removed = _removed(model, mask)
    with undone_on_error([site.module(role) for site in removed for role in site.places]):
        zero_inputs(model, mask)
        read = read_inputs(
            model, [site.module("write") for site in removed], lambda: model(**model_inputs(batch))
        )
        for site, units in removed.items():
            writer = site.module("write")
            channels = site.index("write")[units].flatten()
            constant = constant_of(read[writer], channels, batch.get("attention_mask"), site.name)
            weight = writer.weight.index_select(site.axis("write"), channels.to(writer.weight.device))
            add_constant(writer, constant @ (weight if site.axis("write") == 0 else weight.T), site.name)


@contextmanager
def undone_on_error(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Give modules the parameters back that they had, with their values, if an error ends the block."""
    before = [
        (module, name, p, None if p is None else p.detach().clone())
        for module in modules
        for name, p in module._parameters.items()
    ]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for module, name, p, value in before:
                module._parameters[name] = p
                if p is not None and value is not None:
                    p.copy_(value)
        raise


def constant_of(read: Tensor, channels: Tensor, mask: Tensor | None, name: str) -> Tensor:
    """Return the value that each channel has at every token that is not padding; raise if it has several."""
    tokens = read.reshape(-1, read.shape[-1])[:, channels.to(read.device)]
    if mask is not None and mask.numel() == len(tokens):
        tokens = tokens[mask.flatten().bool()]
    spread = float((tokens.amax(0) - tokens.amin(0)).max()) if tokens.numel() else 0.0
    if spread > CLOSE * max(1.0, float(tokens.abs().max()) if tokens.numel() else 1.0):
        raise UnsupportedError(
            f"what removed units of {name} write is not constant: it varies by {spread:.3g}"
        )
    return tokens.mean(0)


def add_constant(writer: Any, constant: Tensor, name: str) -> None:
    """Add a constant to the output of a layer by its bias."""
    if getattr(writer, "bias", None) is not None:
        with torch.no_grad():
            writer.bias += constant.to(writer.bias)
    elif bool(constant.abs().max() > 0):
        raise UnsupportedError(f"{name} writes a constant, and its output layer has no bias to take it over")


def _removed(model: PreTrainedModel, mask: Mask) -> dict[Site, Tensor]:
    found = {site.name: site for site in sites(model)}
    for name in mask.keys() - found.keys():
        raise UnknownNameError("site", name, found, "mask")
    return {found[name]: ~kept for name, kept in mask.items() if not kept.all()}


def read_inputs(
    model: nn.Module, layers: Iterable[nn.Module], run: Callable[[], object]
) -> dict[nn.Module, Tensor]:
    """Return what layers read in a pass of the model, which is in evaluation mode meanwhile."""
    read: dict[nn.Module, Tensor] = {}

    def keep(layer: nn.Module, args: Any) -> None:
        read[layer] = args[0].detach()

    with frozen_eval(model), ExitStack() as hooks, torch.no_grad():
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(keep))
        run()
    return read
