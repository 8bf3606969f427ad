"""Masks: which units a solution keeps, dark, and which it removes, light."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ...analysis.curves import ONE_SHOT, Tolerance
from ...analysis.results import Results, Unit
from ...analysis.summary import fraction_of
from .. import style
from ._axes import draw_map, fill_map, map_height

WIDEST = 64  # units of a layer up to which each has a cell


def draw(
    results: Sequence[Results], tolerance: Tolerance, points: Mapping[str, float]
) -> style.Figure | None:
    """Draw the first method of several models; of one model, every method whose order is known."""
    known = [(one, method) for one in results if one.layers for method in ordered_methods(one)]
    models = list(dict.fromkeys(one.model for one, _ in known))
    wanted = known if len(models) == 1 else [(one, method) for one, method in known if method == one.lead]
    removed = [(one, method, _count(one, method, tolerance, points)) for one, method in wanted]
    removed = [(one, method, k) for one, method, k in removed if k]  # nothing removed is nothing to see
    if not removed:
        return None
    from matplotlib.patches import Patch

    figure, axes = style.panels([map_height(one.layers) for one, _, _ in removed])
    for axis, (one, method, k) in zip(axes, removed):
        (_draw_bars if max(one.layers) > WIDEST else _draw_cells)(axis, one, one.orders[method][:k])
        names = [method] if len(models) == 1 else [one.model, method]
        axis.set_title(f"{', '.join(map(style.plain, names))}: {k} of {one.units} removed")
    if len(models) == 1:
        figure.suptitle(f"{style.plain(models[0])}: {style.plain(removed[0][0].target)} kept where chosen")
    style.legend_below(figure, {"kept": Patch(color=style.DARK), "removed": Patch(color=style.LIGHT)})
    return figure


def _count(results: Results, method: str, tolerance: Tolerance, points: Mapping[str, float]) -> int:
    """Return how many units the chosen point removes, or the one picked by hand."""
    point = points.get(results.model, results.chosen(method, tolerance=tolerance))
    return min(results.count(fraction_of(results, point)), len(results.orders[method]))


def _draw_cells(axis: style.Axes, results: Results, removed: Sequence[Unit]) -> None:
    from matplotlib.colors import ListedColormap

    units = [(layer, unit) for layer, n in enumerate(results.layers) for unit in range(n)]
    grid = fill_map(results.layers, units, [unit not in set(removed) for unit in units])
    draw_map(axis, grid, results, cmap=ListedColormap([style.LIGHT, style.DARK]), vmin=0, vmax=1)


def _draw_bars(axis: style.Axes, results: Results, removed: Sequence[Unit]) -> None:
    """Draw how many units each layer keeps: thousands of cells would be a barcode."""
    lost = Counter(layer for layer, _ in removed)
    places = range(len(results.layers))
    axis.barh(places, results.layers, color=style.LIGHT, height=0.8)
    axis.barh(places, [n - lost[i] for i, n in enumerate(results.layers)], color=style.DARK, height=0.8)
    axis.invert_yaxis()
    axis.set_xlabel(f"{style.plain(results.target)} of a layer")
    axis.set_ylabel("layer")


def ordered_methods(results: Results) -> list[str]:
    """List the methods pruned one-shot whose order is known and not random."""
    curves = {method: results.curves.get((method, ONE_SHOT)) for method in results.orders}
    return [method for method, curve in curves.items() if curve and not curve.trials]
