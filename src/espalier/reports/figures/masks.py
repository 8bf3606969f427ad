"""Final masks: which units a solution keeps, dark, and which it prunes, light."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...analysis.results import Results
from .. import maps, style


def draw(every: Sequence[Results], within: float, points: Mapping[str, int]) -> Any:
    """Of several models the leading strategy of each; of one model every strategy whose order is known."""
    known = [r for r in every if r.layers and r.orders]
    if len(known) == 1:
        wanted = [(known[0], label) for label in known[0].orders if label in known[0].curves]
    else:
        wanted = [(r, r.lead) for r in known if r.lead in r.orders]
    if not wanted:
        return None
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    figure, axes = style.panels([maps.height(r.layers) for r, _ in wanted])
    colours = ListedColormap([style.LIGHT, style.DARK])
    for axis, (results, label) in zip(axes, wanted):
        order = results.orders[label]
        k = min(points.get(results.model, results.chosen(label, within)), len(order))
        every_unit = [(layer, head) for layer, n in enumerate(results.layers) for head in range(n)]
        gone = set(order[:k])
        grid = maps.filled(results.layers, every_unit, [unit not in gone for unit in every_unit])
        maps.paint(axis, grid, results.layers, cmap=colours, vmin=0, vmax=1)
        maps.name_axes(axis, results)
        name = style.text(label) if len(known) == 1 else f"{style.text(results.model)}, {style.text(label)}"
        axis.set_title(f"{name}: {k} of {results.units} removed")
    if len(known) == 1:
        figure.suptitle(style.text(known[0].model))
    patches = {"kept": Patch(color=style.DARK), "removed": Patch(color=style.LIGHT)}
    style.legend_below(figure, patches)
    return figure
