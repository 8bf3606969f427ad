"""Gradients elsewhere when one unit is cut: the pooled change of every head's Q, K and V gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...analysis.results import Results
from .. import maps, style


def draw(results: Results) -> Any:
    """One row of panels for each unit that was cut, one column for each role; blue fell, red rose."""
    if not results.pooling:
        return None
    roles = list(dict.fromkeys(role for change in results.pooling.values() for role in change))
    panels = [(cut, role) for cut in results.pooling for role in roles]
    tall = maps.height(results.layers, len(roles))
    figure, axes = style.panels([tall] * len(panels), columns=len(roles))
    for axis, ((layer, head), role) in zip(axes, panels):
        grid = results.pooling[layer, head][role].copy()
        grid[layer, head] = np.nan  # its own gradient is gone; the question is what happens elsewhere
        # a scale of its own: gradients of V are many times those of Q and K
        most = float(np.nanmax(np.abs(grid))) if np.isfinite(grid).any() else 0.0
        ends = {"vmin": -(most or 1.0), "vmax": most or 1.0}
        mesh = maps.paint(axis, grid, results.layers, cmap="RdBu_r", **ends)
        maps.name_axes(axis, results)
        axis.plot(head + 0.5, layer + 0.5, marker="x", color="black", markersize=4)
        axis.set_title(f"{style.text(role.upper())}, without ({layer}, {head})")
        style.scale_beside(axis, mesh)
    figure.suptitle(f"{style.text(results.model)}: mean change of gradients when one head (×) is cut")
    return figure
