"""Axes that figures share: curves (what was removed, what was measured) and layer × unit maps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...analysis.curves import ONE_SHOT
from ...analysis.results import BASE_KEY, Key, Results, Unit
from ...core.errors import UnknownNameError
from ...evaluation import metrics
from .. import captions, style, text

if TYPE_CHECKING:
    from matplotlib.collections import QuadMesh

HEIGHT = 2.55  # inches
COSTS = {  # the label of an axis, and what one unit of it is
    "parameters": ("parameters, millions", 1e6),
    "macs": ("multiply-accumulates of the blocks, millions", 1e6),
    "latency": ("measured latency, ms", 1e-3),
}
SUBTITLE: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "color": style.GREY}
SUBTITLE |= {"ha": "center", "va": "bottom", "fontsize": 6.5}
CELL, LOWEST = 0.26, 0.14  # inches: the largest cell, the lowest row
TALLEST = 4.6  # inches: two panels fill a page


def xs(results: Results, removed: Iterable[float]) -> list[float]:
    """Return places on the x axis: counts of units, or percent of weights."""
    return [results.count(x) if results.counted else 100 * x for x in removed]


def cost_xs(results: Results, key: Key, removed: Iterable[float], by: str) -> list[float]:
    """Return places on an x axis that is one of COSTS, or what was removed."""
    if by == "removed":
        return xs(results, removed)
    return [_cost(results, key, level, by) or 0.0 for level in removed]


def known_axis(results: Results, by: str) -> str:
    """Return an axis if every point of a run has its cost, else `removed`."""
    if by not in (*COSTS, "removed"):
        raise UnknownNameError("axis", by, ["removed", *COSTS], "axis")
    levels = [(key, level) for key in results.keys for level in results.curves[key].removed]
    known = by != "removed" and all(_cost(results, key, level, by) is not None for key, level in levels)
    return by if known else "removed"


def _cost(results: Results, key: Key, removed: float, by: str) -> float | None:
    found: float | None = getattr(results.cost(key, removed), by)
    return found and found / COSTS[by][1]


def ys(results: Results, scores: Iterable[float]) -> list[float]:
    """Return places on the y axis: values of the metric."""
    return [results.show(score) for score in scores]


def set_axes(axis: style.Axes, results: Results, phases: Sequence[str], by: str = "removed") -> None:
    """Set labels, limits, ticks and the title of a panel; the unpruned model is always on the left."""
    axis.set_ylabel(style.plain(text.label(results.metric)))
    groups = len(results.phases) > 1 or results.phases != [ONE_SHOT]
    shown = f": {style.plain(results.target)}" + (f", {' and '.join(phases)}" if groups else " removed")
    title = style.plain(results.model, longest=max(12, 44 - len(shown))) + shown
    axis.grid(axis="y")
    _set_values(axis, results, shared=groups)
    if by != "removed":
        axis.set_title(title)
        axis.set_xlabel(COSTS[by][0])
        axis.invert_xaxis()
    elif results.counted:
        _set_counts(axis, results)
        below = style.plain(captions.describe_panel(results), longest=80)
        axis.set_title(title, pad=14 if below else None)
        axis.annotate(below, (0.5, 1), (0, 4), **SUBTITLE)
    else:
        axis.set_title(title)
        _set_percent(axis, results)


def _set_counts(axis: style.Axes, results: Results) -> None:
    from matplotlib.ticker import MaxNLocator

    often = f", each used {results.uses} times" if results.uses > 1 else ""
    axis.set_xlabel(f"{style.plain(results.target)} removed, of {results.units}{often}")
    axis.set_xlim(-0.015 * results.units, 1.015 * results.units)
    if results.units % 12 == 0:
        step = results.units // 12 * (1 if results.units <= 12 else 2)
        axis.set_xticks(range(0, results.units + 1, step))
    else:
        axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))


def _set_percent(axis: style.Axes, results: Results) -> None:
    """Weights: percent of the pruned matrices below, how many times smaller the whole model is above."""
    levels = results.levels
    ticks = levels[:: max(1, -(-len(levels) // 8))]
    axis.set_xticks(xs(results, ticks))
    axis.set_xlabel("weights of the pruned matrices removed, %")
    room = 6 * (levels[-1] - levels[0]) or 3  # the last label of the upper axis stays inside the figure
    axis.set_xlim(100 * levels[0] - room, 100 * levels[-1] + room)
    base = results.cost(BASE_KEY, 0.0)
    known = {x: cost for costs in results.costs.values() for x, cost in costs.items()}
    smaller = {x: known[x].compression(base)["model"] for x in ticks if x in known}
    if any(smaller.values()):
        top = axis.secondary_xaxis("top")
        top.set_xticks(xs(results, ticks), [text.times(smaller.get(x)) for x in ticks])
        top.set_xlabel("times smaller, the whole model, if zeros cost nothing", fontsize=7)
        top.spines["top"].set_visible(True)


def _set_values(axis: style.Axes, results: Results, shared: bool) -> None:
    """Show shares in percent and wide perplexities on a log scale; panels of one model share their limits."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    metric = metrics.load(results.metric)
    rows = [row for curve in results.curves.values() for row in (curve.values, *curve.trials)]
    shown = ys(results, (score for row in rows for score in row))
    if results.majority is not None:
        shown.append(results.majority)
    log = metric.log and max(shown) > 4 * min(shown)
    if metric.share:
        axis.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.6g} %"))
    if log:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
    elif shared:
        room = 0.05 * (max(shown) - min(shown)) or 0.01
        axis.set_ylim(min(shown) - room, max(shown) + room)


def map_height(layers: Sequence[int], columns: int = 2) -> float:
    """Return the height of a panel with square cells; rows stay distinguishable where cells are tiny."""
    cell = min(CELL, 0.82 * style.WIDTH / columns / max(layers))
    return min(0.6 + max(cell, LOWEST) * len(layers), TALLEST)


def fill_map(layers: Sequence[int], units: Iterable[Unit], values: Iterable[float]) -> np.ndarray:
    """Return [layers, units] with nan wherever no value is given."""
    grid = np.full((len(layers), max(layers)), np.nan)
    for (layer, unit), value in zip(units, values):
        grid[layer, unit] = value
    return grid


def draw_map(axis: style.Axes, grid: np.ndarray, results: Results, **more: Any) -> QuadMesh:
    """Draw cells with thin gaps, the first layer on top, and name the axes."""
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    rows, columns = grid.shape
    exists = np.arange(columns)[None, :] < np.asarray(results.layers)[:, None]
    many = grid.size > 4000
    unknown = np.ma.masked_where(~exists, np.ones_like(grid))
    axis.pcolormesh(unknown, cmap=ListedColormap([style.UNKNOWN]), edgecolors="none", rasterized=many)
    gaps: dict[str, Any] = {"edgecolors": "none" if many else "white", "linewidth": 0.0 if many else 0.5}
    shown = np.ma.masked_invalid(np.where(exists, grid, np.nan))
    mesh = axis.pcolormesh(shown, rasterized=many, **gaps, **more)
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
    axis.set_xlabel(style.plain(results.target.removesuffix("s")))
    axis.set_ylabel("layer")
    if len(results.layers) == 1:
        axis.set_yticks([])
        shared = f"shared,\nused {results.uses}×" if results.uses > 1 else "layer"
        axis.set_ylabel(shared, rotation=0, ha="right", va="center")
    return mesh
