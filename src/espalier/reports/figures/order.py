"""The order of removal as a layer × head map: what went first is light, what stayed longest is dark."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...analysis.results import Results
from .. import maps, style

READABLE = 14  # heads in a row up to which a rank fits into its cell


def draw(results: Results) -> Any:
    """One panel for each strategy whose order is known."""
    known = {label: order for label, order in results.orders.items() if order}
    if not known or not results.layers:
        return None
    figure, axes = style.panels([maps.height(results.layers)] * len(known))
    mesh = None
    for axis, (label, order) in zip(axes, known.items()):
        ranks = range(1, len(order) + 1)
        grid = maps.filled(results.layers, order, ranks)
        mesh = maps.paint(axis, grid, results.layers, cmap=style.SEQUENCE, vmin=1, vmax=max(results.units, 2))
        maps.name_axes(axis, results)
        axis.set_title(style.text(label))
        if max(results.layers) <= READABLE:
            _annotate(axis, grid, results.units)
    style.scale_beside(axes[min(1, len(axes) - 1)], mesh)
    left = "" if all(len(order) == results.units for order in known.values()) else "; grey: kept"
    figure.suptitle(f"{style.text(results.model)}: order of removal, 1 went first{left}")
    return figure


def _annotate(axis: Any, grid: np.ndarray, units: int) -> None:
    for (layer, head), rank in np.ndenumerate(grid):
        if np.isfinite(rank):
            axis.text(
                head + 0.5,
                layer + 0.53,
                f"{rank:.0f}",
                ha="center",
                va="center",
                fontsize=5.2,
                in_layout=False,  # it lies inside its cell, and measuring it is slow
                color="white" if rank > 0.55 * units else "black",
            )
