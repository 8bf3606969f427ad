"""Layers: how many units every layer keeps. Where units of all layers compete, some layers lose more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...analysis.curves import Tolerance
from ...analysis.results import Results
from ...analysis.summary import fraction_of
from .. import style
from .masks import ordered_methods

HEIGHT = 2.2  # inches


def draw(
    results: Sequence[Results], tolerance: Tolerance, points: Mapping[str, float]
) -> style.Figure | None:
    """Draw one panel for each model, with every method whose order is known."""
    panels: dict[str, dict[str, list[int]]] = {}
    units: dict[str, tuple[str, Sequence[int]]] = {}
    for one in results:
        if len(one.layers or ()) < 2:
            continue
        for method in ordered_methods(one):
            point = points.get(one.model, one.chosen(method, tolerance=tolerance))
            k = min(one.count(fraction_of(one, point)), len(one.orders[method]))
            gone = Counter(layer for layer, _ in one.orders[method][:k])
            kept = [n - gone[layer] for layer, n in enumerate(one.layers)]
            panels.setdefault(one.model, {})[f"{method}, {k} of {one.units} removed"] = kept
            units[one.model] = (one.target, one.layers)
    return draw_kept(panels, units) if panels else None


def draw_kept(
    panels: Mapping[str, Mapping[str, Sequence[int]]], units: Mapping[str, tuple[str, Sequence[int]]]
) -> style.Figure:
    """Draw the units that each layer keeps: {title: {label: kept by layer}}, {title: (target, all units)}."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = style.panels([HEIGHT] * len(panels))
    shown: dict[str, Any] = {}
    for axis, (title, lines) in zip(axes, panels.items()):
        target, whole = units[title]
        layers = range(1, len(whole) + 1)
        axis.step(layers, whole, where="mid", color=style.GREY, linewidth=0.8, linestyle=":")
        for label, kept in lines.items():
            known = shown.get(style.plain(label))
            colour = f"C{len(shown) % 10}" if known is None else known.get_color()
            (line,) = axis.plot(layers, kept, "o-", color=colour, markersize=3, linewidth=1.2)
            shown.setdefault(style.plain(label), line)
        axis.set_title(style.plain(title))
        axis.set_xlabel("layer")
        axis.set_ylabel(f"{style.plain(target)} kept")
        axis.set_ylim(0, 1.08 * max(whole))
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(MaxNLocator(8, integer=True))
        axis.grid(axis="y")
    style.legend_below(figure, shown)
    return figure
