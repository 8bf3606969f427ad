"""Convolution nets: any nn.Module of convolutions, norms and linear layers, residual ones too.

    sites = filter_sites(net, example)                       # which filters exist, and what depends on each
    mask = remove_lowest(l1(sites), 0.5, scope="layer")      # or scales(sites) after slimmed training
    remove_filters(net, mask, example)                       # the cascade: norms and what reads them

What depends on what is found by Torch-Pruning, which follows a pass of the example: filters whose outputs are
added to each other, as in a residual net, are one unit and are removed together.
"""

from __future__ import annotations

from .absorption import absorb_filters, zero_filters
from .filters import FilterSite, filter_sites, l1, remove_filters, scales, weight_sites
from .folder import load_net, save_net
from .norms import fold_batch_norms, fold_layer_norm
from .slimming import slimmed

__all__ = [
    "FilterSite",
    "absorb_filters",
    "filter_sites",
    "fold_batch_norms",
    "fold_layer_norm",
    "l1",
    "load_net",
    "remove_filters",
    "save_net",
    "scales",
    "slimmed",
    "weight_sites",
    "zero_filters",
]
