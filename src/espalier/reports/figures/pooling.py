"""Gradients elsewhere when one unit is cut: the pooled change of every head's Q, K and V gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...analysis.curves import Tolerance
from ...analysis.results import Results
from .. import style
from ._axes import draw_map, map_height

PER_MODEL = True


def draw(
    results: Sequence[Results], tolerance: Tolerance, points: Mapping[str, float]
) -> style.Figure | None:
    """Draw one row of panels per unit that was cut, one column per role; blue fell, red rose."""
    (one,) = results
    if not one.pooling:
        return None
    roles = list(dict.fromkeys(role for change in one.pooling.values() for role in change))
    panels = [(cut, role) for cut in one.pooling for role in roles]
    figure, axes = style.panels([map_height(one.layers, len(roles))] * len(panels), columns=len(roles))
    for axis, ((layer, unit), role) in zip(axes, panels):
        grid = one.pooling[layer, unit][role].copy()
        grid[layer, unit] = np.nan  # its own gradient does not exist any more
        # one scale per panel: gradients of V are many times those of Q and K
        most = float(np.nanmax(np.abs(grid))) if np.isfinite(grid).any() else 0.0
        mesh = draw_map(axis, grid, one, cmap="RdBu_r", vmin=-(most or 1.0), vmax=most or 1.0)
        axis.plot(unit + 0.5, layer + 0.5, marker="x", color="black", markersize=4)
        axis.set_title(f"{style.plain(role.upper())}, without ({layer}, {unit})")
        style.colour_bar(axis, mesh)
    figure.suptitle(f"{style.plain(one.model)}: mean change of gradients when one head (×) is cut")
    return figure
