"""The order of removal as a layer × unit map: light was removed first, dark was kept longest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...analysis.curves import Tolerance
from ...analysis.results import Results
from .. import style
from ._axes import draw_map, fill_map, map_height
from .masks import ordered_methods

PER_MODEL = True
READABLE = 14  # units in a row up to which a rank fits into its cell
# it lies inside its cell, and measuring it is slow
RANK: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 5.2, "in_layout": False}


def draw(
    results: Sequence[Results], tolerance: Tolerance, points: Mapping[str, float]
) -> style.Figure | None:
    """Draw one panel for each method whose order is known."""
    (one,) = results
    orders = {method: one.orders[method] for method in ordered_methods(one)}
    if not orders or not one.layers:
        return None
    figure, axes = style.panels([map_height(one.layers)] * len(orders))
    for axis, (method, order) in zip(axes, orders.items()):
        grid = fill_map(one.layers, order, range(1, len(order) + 1))
        mesh = draw_map(axis, grid, one, cmap=style.SEQUENCE, vmin=1, vmax=max(one.units, 2))
        axis.set_title(style.plain(method))
        for (layer, unit), rank in np.ndenumerate(grid):
            if np.isfinite(rank) and max(one.layers) <= READABLE:
                colour = "white" if rank > 0.55 * one.units else "black"
                axis.text(unit + 0.5, layer + 0.53, f"{rank:.0f}", color=colour, **RANK)
    style.colour_bar(axes[min(1, len(axes) - 1)], mesh)
    kept = "" if all(len(order) == one.units for order in orders.values()) else "; grey: kept"
    figure.suptitle(f"{style.plain(one.model)}: order of removal, 1 is the first{kept}")
    return figure
