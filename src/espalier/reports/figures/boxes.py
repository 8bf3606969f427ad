"""Random removal as box plots at each level, with the leading strategy and the unpruned model across them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ...analysis.results import Results
from .. import style

BOX, EDGE = "#DDDDDD", "#777777"  # random removal is grey in every figure


def draw(every: Sequence[Results]) -> Any:
    """One panel for each model that has trials."""
    found = [results for results in every if results.trials]
    if not found:
        return None
    figure, axes = style.panels([style.CURVE] * len(found))
    handles: dict[str, Any] = {}
    for axis, results in zip(axes, found):
        style.axis_of(axis, results)
        trials = results.trials[results.random or ""]
        step = min((b - a for a, b in pairwise(trials.removed)), default=1)
        boxes = axis.boxplot(
            [[results.show(v) for v in column] for column in zip(*trials.accuracy)],
            positions=trials.removed,
            widths=0.62 * step,
            manage_ticks=False,
            patch_artist=True,
            boxprops={"facecolor": BOX, "edgecolor": EDGE, "linewidth": 0.6},
            medianprops={"color": "black", "linewidth": 1.0},
            whiskerprops={"color": EDGE, "linewidth": 0.6},
            capprops={"color": EDGE, "linewidth": 0.6},
            flierprops={
                "marker": ".",
                "markersize": 2.6,
                "markerfacecolor": EDGE,
                "markeredgewidth": 0,
            },
        )
        axis.set_xlim(-0.7 * step, results.units + 0.7 * step)
        handles.setdefault("random trials", boxes["boxes"][0])
        if boxes["fliers"]:
            handles.setdefault("outliers", boxes["fliers"][0])
        if results.lead:
            curve = results.curves[results.lead]
            how = {**style.line(results.lead, [results.lead]), "marker": "", "linewidth": 1.6}
            shown = [results.show(v) for v in curve.accuracy]
            (drawn,) = axis.plot(curve.removed, shown, zorder=5, **how)
            handles.setdefault(style.text(results.lead), drawn)
        base = axis.axhline(
            results.show(results.base),
            color="black",
            linewidth=0.7,
            linestyle=(0, (4, 3)),
            zorder=4,
        )
        handles.setdefault("unpruned", base)
    style.legend_below(figure, handles)
    return figure
