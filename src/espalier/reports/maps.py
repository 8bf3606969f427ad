"""Layer × head maps, the ground on which masks, scores, orders and gradients are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..analysis.results import Results, Unit
from . import style

CELL, LOW = 0.26, 0.14  # inches: a cell at most, a row at least
TALLEST = 4.6  # of a panel: two of them fill a page


def height(layers: Sequence[int], columns: int = 2) -> float:
    """A panel as tall as square cells make it; where they would be specks, as rows need to be told apart."""
    cell = min(CELL, 0.82 * style.WIDTH / columns / max(layers))
    return min(0.6 + max(cell, LOW) * len(layers), TALLEST)


def filled(layers: Sequence[int], units: Iterable[Unit], values: Iterable[float]) -> np.ndarray:
    """[layers, heads] with nan wherever no value is given."""
    grid = np.full((len(layers), max(layers)), np.nan)
    for (layer, head), value in zip(units, values):
        grid[layer, head] = value
    return grid


def paint(axis: Any, grid: np.ndarray, layers: Sequence[int], **more: Any) -> Any:
    """Cells with thin gaps, the first layer on top; where no unit is, nothing is drawn."""
    from matplotlib.ticker import MaxNLocator

    rows, columns = grid.shape
    there = np.arange(columns)[None, :] < np.asarray(layers)[:, None]
    many = grid.size > 4000
    axis.pcolormesh(
        np.ma.masked_where(~there, np.ones_like(grid)),
        cmap=one_colour(style.UNKNOWN),
        edgecolors="none",
        rasterized=many,
    )
    mesh = axis.pcolormesh(
        np.ma.masked_invalid(np.where(there, grid, np.nan)),
        edgecolors="none" if many else "white",
        linewidth=0.0 if many else 0.5,
        rasterized=many,
        **more,
    )
    axis.set_xlim(0, columns)
    axis.set_ylim(rows, 0)
    axis.set_aspect("equal" if columns <= 24 else "auto", anchor="N")
    for way, count in ((axis.xaxis, columns), (axis.yaxis, rows)):
        if count <= 48:
            step = 1 if count <= 16 else 2
            way.set_ticks(np.arange(0, count, step) + 0.5, labels=range(0, count, step))
        else:
            way.set_major_locator(MaxNLocator(8, integer=True))
    axis.tick_params(length=0, pad=2, labelsize=6)
    for spine in axis.spines.values():
        spine.set_visible(False)
    return mesh


def name_axes(axis: Any, results: Results) -> None:
    singular = results.target.removesuffix("s")
    axis.set_xlabel(style.text(singular))
    axis.set_ylabel("layer")
    if len(results.layers) == 1:
        axis.set_yticks([])
        axis.set_ylabel(
            f"shared,\nused {results.uses}×" if results.uses > 1 else "layer",
            rotation=0,
            ha="right",
        )
        axis.yaxis.label.set_verticalalignment("center")


def one_colour(colour: str) -> Any:
    from matplotlib.colors import ListedColormap

    return ListedColormap([colour])
