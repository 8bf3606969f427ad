"""The constant that a zeroed filter still writes, act(norm(b)), absorbed by the layers that read it.

Exact where a reader sees the same constant everywhere: a linear layer, or a convolution without padding. At
the border of a padded convolution there are zeros instead, so a constant other than zero is refused there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..core.errors import UnknownNameError, UnsupportedError
from ..core.mask import Mask
from ..pruning.absorption import add_constant, constant_of, read_inputs, undone_on_error
from .filters import FilterSite, Part, filter_sites


def zero_filters(net: nn.Module, mask: Mask, example: Tensor) -> list[tuple[FilterSite, Tensor]]:
    """Set the weights of removed filters to zero, in place; biases and norms stay. Return what is removed."""
    found = {site.name: site for site in filter_sites(net, example)}
    for name in mask.keys() - found.keys():
        raise UnknownNameError("filters", name, found, "mask")
    removed = [(found[name], ~kept) for name, kept in mask.items() if not kept.all()]
    with torch.no_grad():
        for site, units in removed:
            for part in site.writers:
                part.module.weight[part.channels[units[part.units]]] = 0
    return removed


def absorb_filters(net: nn.Module, mask: Mask, example: Tensor) -> None:
    """Zero removed filters and add what they still write to the biases of their readers, in place.

    Afterwards `remove_filters(net, mask, example)` equals the net with zeroed filters, in evaluation mode. A
    net that is refused is left as it was.
    """
    with undone_on_error(net.modules()):
        removed = zero_filters(net, mask, example)
        readers = [part.module for site, _ in removed for part in site.readers]
        read = read_inputs(net, readers, lambda: net(example))
        with torch.no_grad():
            for site, units in removed:
                for part in site.readers:
                    _absorb(site, part, part.channels[units[part.units]], read[part.module])


def _absorb(site: FilterSite, part: Part, channels: Tensor, maps: Tensor) -> None:
    layer = part.module
    last = maps.movedim(1, -1) if maps.dim() > 2 else maps
    constant = constant_of(last, channels, None, site.name)
    weight = layer.weight.flatten(2).sum(2) if layer.weight.dim() > 2 else layer.weight
    padded = any(getattr(layer, "padding", (0,))) and getattr(layer, "padding_mode", "zeros") == "zeros"
    if padded and bool(constant.abs().max() > 0):
        raise UnsupportedError(
            f"{site.name} writes a constant into a padded convolution, whose border sees zeros"
        )
    if getattr(layer, "groups", 1) > 1:
        raise UnsupportedError(f"{site.name} is read by a depthwise convolution: its filters go with these")
    if layer.bias is None and bool(constant.abs().max() > 0):
        layer.bias = nn.Parameter(torch.zeros(len(weight), dtype=weight.dtype))
    add_constant(layer, weight[:, channels] @ constant, site.name)
