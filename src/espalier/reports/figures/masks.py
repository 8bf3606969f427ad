"""Masks: which units a solution keeps, dark, and which it removes, light."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...analysis.curves import ONE_SHOT
from ...analysis.results import Results
from ...analysis.summary import fraction_of
from ...analysis.tolerance import Tolerance
from .. import style
from ._axes import draw_map, fill_map, map_height


def draw(
    results: Sequence[Results], tolerance: Tolerance, points: Mapping[str, float]
) -> style.Figure | None:
    """Draw the first method of several models; of one model, every method whose order is known."""
    known = [(one, method) for one in results if one.layers for method in ordered_methods(one)]
    models = list(dict.fromkeys(one.model for one, _ in known))
    wanted = known if len(models) == 1 else [(one, method) for one, method in known if method == one.lead]
    if not wanted:
        return None
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    figure, axes = style.panels([map_height(one.layers) for one, _ in wanted])
    colours = ListedColormap([style.LIGHT, style.DARK])
    for axis, (one, method) in zip(axes, wanted):
        point = points.get(one.model, one.chosen(method, tolerance=tolerance))
        k = min(one.count(fraction_of(one, point)), len(one.orders[method]))
        units = [(layer, unit) for layer, n in enumerate(one.layers) for unit in range(n)]
        removed = set(one.orders[method][:k])
        grid = fill_map(one.layers, units, [unit not in removed for unit in units])
        draw_map(axis, grid, one, cmap=colours, vmin=0, vmax=1)
        names = [method] if len(models) == 1 else [one.model, method]
        axis.set_title(f"{', '.join(map(style.plain, names))}: {k} of {one.units} removed")
    if len(models) == 1:
        figure.suptitle(style.plain(models[0]))
    style.legend_below(figure, {"kept": Patch(color=style.DARK), "removed": Patch(color=style.LIGHT)})
    return figure


def ordered_methods(results: Results) -> list[str]:
    """List the methods pruned one-shot whose order is known and not random."""
    curves = {method: results.curves.get((method, ONE_SHOT)) for method in results.orders}
    return [method for method, curve in curves.items() if curve and not curve.trials]
