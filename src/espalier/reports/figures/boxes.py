"""Random removal as box plots at each level, with the first method and the unpruned model across them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ...analysis.curves import Tolerance
from ...analysis.results import Results
from .. import style
from ._axes import HEIGHT, set_axes, xs, ys

BOX, EDGE = "#DDDDDD", "#777777"  # random removal is grey in every figure
BOXES: dict[str, Any] = {
    "manage_ticks": False,
    "patch_artist": True,
    **{part: {"color": EDGE, "linewidth": 0.6} for part in ("whiskerprops", "capprops")},
    "boxprops": {"facecolor": BOX, "edgecolor": EDGE, "linewidth": 0.6},
    "medianprops": {"color": "black", "linewidth": 1.0},
    "flierprops": {"marker": ".", "markersize": 2.6, "markerfacecolor": EDGE, "markeredgewidth": 0},
}


def draw(
    results: Sequence[Results], tolerance: Tolerance, points: Mapping[str, float]
) -> style.Figure | None:
    """Draw one panel for each model that has random trials."""
    found = [(one, next(key for key in one.keys if key[0] == one.random)) for one in results if one.random]
    if not found:
        return None
    figure, axes = style.panels([HEIGHT] * len(found))
    handles: dict[str, Any] = {}
    for axis, (one, key) in zip(axes, found):
        set_axes(axis, one, [key[1]])
        curve = one.curves[key]
        places = xs(one, curve.removed)
        step = min((b - a for a, b in pairwise(places)), default=1)
        columns = [ys(one, column) for column in zip(*curve.trials)]
        boxes = axis.boxplot(columns, positions=places, widths=0.62 * step, **BOXES)
        axis.set_xlim(places[0] - 0.7 * step, xs(one, [1.0])[0] + 0.7 * step)
        handles.setdefault("random trials", boxes["boxes"][0])
        if boxes["fliers"]:
            handles.setdefault("outliers", boxes["fliers"][0])
        if one.lead and (one.lead, key[1]) in one.curves:
            lead = one.curves[one.lead, key[1]]
            look = style.lines([one.lead], one.settings)[one.lead] | {"marker": "", "linewidth": 1.6}
            (line,) = axis.plot(xs(one, lead.removed), ys(one, lead.values), zorder=5, **look)
            handles.setdefault(style.plain(one.lead), line)
        handles.setdefault("unpruned", style.base_line(axis, one.show(one.base)))
    style.legend_below(figure, handles)
    return figure
