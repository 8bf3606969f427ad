"""Layer × unit maps, on which masks, scores, orders and gradients are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis.results import Results, Unit
from . import style

if TYPE_CHECKING:
    from matplotlib.collections import QuadMesh

CELL, LOWEST = 0.26, 0.14  # inches: the largest cell, the lowest row
TALLEST = 4.6  # inches: two panels fill a page


def height(layers: Sequence[int], columns: int = 2) -> float:
    """Return the height of a panel with square cells; rows stay distinguishable where cells are tiny."""
    cell = min(CELL, 0.82 * style.WIDTH / columns / max(layers))
    return min(0.6 + max(cell, LOWEST) * len(layers), TALLEST)


def fill(layers: Sequence[int], units: Iterable[Unit], values: Iterable[float]) -> np.ndarray:
    """Return [layers, units] with nan wherever no value is given."""
    grid = np.full((len(layers), max(layers)), np.nan)
    for (layer, unit), value in zip(units, values):
        grid[layer, unit] = value
    return grid


def paint(axis: style.Axes, grid: np.ndarray, results: Results, **more: Any) -> QuadMesh:
    """Draw cells with thin gaps, the first layer on top, and name the axes."""
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    rows, columns = grid.shape
    exists = np.arange(columns)[None, :] < np.asarray(results.layers)[:, None]
    many = grid.size > 4000
    axis.pcolormesh(
        np.ma.masked_where(~exists, np.ones_like(grid)),
        cmap=ListedColormap([style.UNKNOWN]),
        edgecolors="none",
        rasterized=many,
    )
    mesh = axis.pcolormesh(
        np.ma.masked_invalid(np.where(exists, grid, np.nan)),
        edgecolors="none" if many else "white",
        linewidth=0.0 if many else 0.5,
        rasterized=many,
        **more,
    )
    axis.set_xlim(0, columns)
    axis.set_ylim(rows, 0)
    axis.set_aspect("equal" if columns <= 24 else "auto", anchor="N")
    for side, count in ((axis.xaxis, columns), (axis.yaxis, rows)):
        if count <= 48:
            step = 1 if count <= 16 else 2
            side.set_ticks(np.arange(0, count, step) + 0.5, labels=[str(i) for i in range(0, count, step)])
        else:
            side.set_major_locator(MaxNLocator(8, integer=True))
    axis.tick_params(length=0, pad=2, labelsize=6)
    for spine in axis.spines.values():
        spine.set_visible(False)
    _name_axes(axis, results)
    return mesh


def _name_axes(axis: style.Axes, results: Results) -> None:
    axis.set_xlabel(style.plain(results.target.removesuffix("s")))
    axis.set_ylabel("layer")
    if len(results.layers) == 1:
        axis.set_yticks([])
        shared = f"shared,\nused {results.uses}×" if results.uses > 1 else "layer"
        axis.set_ylabel(shared, rotation=0, ha="right", va="center")
