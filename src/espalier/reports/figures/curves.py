"""The metric against what was removed, every level drawn; random methods as mean and range of their trials.

A tick marks the point that the tolerance chooses, a cross the collapse, a star a point picked by hand.
Trained models have a panel of their own: recovered dashed, gradual dotted and dashed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...analysis.curves import ONE_SHOT, Tolerance
from ...analysis.results import Key, Results
from ...analysis.summary import fraction_of
from .. import style, text
from ._axes import HEIGHT, cost_xs, known_axis, set_axes, ys

NO_LINE: dict[str, Any] = {"linestyle": "none", "clip_on": False, "zorder": 6}
CHOSEN = {"marker": "|", "markersize": 13, "markeredgewidth": 2.2, **NO_LINE}
COLLAPSE = {"marker": "x", "markersize": 7, "markeredgewidth": 1.6, **NO_LINE}
PICKED = {"marker": "*", "markersize": 9, "markerfacecolor": "white", "markeredgewidth": 0.9, **NO_LINE}
RANDOM: dict[str, Any] = {"color": style.GREY, "linewidth": 1.0, "linestyle": (0, (3, 1, 1, 1))}
AXIS = True  # it can be drawn against costs
Handles = dict[str, Any]


def draw(
    results: Sequence[Results], tolerance: Tolerance, points: Mapping[str, float], axis: str = "removed"
) -> style.Figure | None:
    """Draw a panel for what was pruned one-shot and one for what was trained, for each model.

    `axis` is removed, parameters, macs or latency; a run without the cost is drawn against what was removed.
    """
    panels: list[tuple[Results, list[str]]] = []
    for one in results:
        trained = [phase for phase in one.phases if phase != ONE_SHOT]
        panels += [(one, [ONE_SHOT])] * (ONE_SHOT in one.phases) + [(one, trained)] * bool(trained)
    if not panels:
        return None
    figure, axes = style.panels([HEIGHT if one.counted else HEIGHT + 0.45 for one, _ in panels])
    by_phase = any(len(one.phases) > 1 for one in results)
    methods = list(dict.fromkeys(m for one in results for m, p in one.keys if not one.curves[m, p].trials))
    settings = {method: s for one in reversed(results) for method, s in one.settings.items()}
    looks = style.lines(methods, settings, by_phase)
    handles: Handles = {}
    for panel, (one, phases) in zip(axes, panels):
        by = known_axis(one, axis)
        set_axes(panel, one, phases, by)
        _draw_random(panel, one, phases, handles, by)
        drawn = [key for key in one.keys if key[1] in phases and not one.curves[key].trials]
        for i, key in enumerate(drawn):
            look = looks[key[0]] | ({"linestyle": style.PHASE_DASHES[key[1]]} if by_phase else {})
            _draw_curve(panel, one, key, look, (i, len(drawn)), tolerance, by)
        picked = points.get(one.model)
        lead = next((key for key in drawn if key[0] == one.lead), None)
        if picked is not None and lead:
            _mark(panel, one, lead, fraction_of(one, picked), PICKED | {"markeredgecolor": "black"}, by)
        handles.setdefault("unpruned", style.base_line(panel, one.show(one.base)))
        if one.majority is not None:
            line = panel.axhline(one.majority, color="black", linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
            handles.setdefault("most frequent class", line)
    named = {style.plain(method): _sign(**looks[method]) for method in methods}
    style.legend_below(figure, named | _explain(results, tolerance, points) | handles)
    return figure


def _draw_curve(
    axis: style.Axes,
    results: Results,
    key: Key,
    look: dict[str, Any],
    place: tuple[int, int],
    tolerance: Tolerance,
    by: str,
) -> None:
    """Draw one curve; of weights without the unpruned model, from which the first level is far away."""
    curve, start = results.curves[key], 0 if results.counted else 1
    shown = ys(results, curve.values[start:])
    step = max(1, len(shown) // 9)  # few markers, and not those of several curves on one level
    look |= {"markevery": (place[0] * step // place[1], step), "zorder": 4 if key[0] == results.lead else 3}
    axis.plot(cost_xs(results, key, curve.removed[start:], by), shown, **look)
    for removed, how in ((curve.within(tolerance), CHOSEN), (curve.collapse(results.majority), COLLAPSE)):
        if removed:
            _mark(axis, results, key, removed, how | {"markeredgecolor": look["color"]}, by)


def _mark(
    axis: style.Axes, results: Results, key: Key, removed: float, how: Mapping[str, Any], by: str
) -> None:
    y = ys(results, [results.curves[key].at(removed)])
    axis.plot(cost_xs(results, key, [removed], by), y, **how)


def _draw_random(
    axis: style.Axes, results: Results, phases: Sequence[str], handles: Handles, by: str
) -> None:
    """Draw the random method; of several trained phases, the first."""
    found = [key for key in results.keys if key[0] == results.random and key[1] in phases]
    if not found:
        return
    curve = results.curves[found[0]]
    x = cost_xs(results, found[0], curve.removed, by)
    low, high = (ys(results, bound.values) for bound in (curve.lowest(), curve.highest()))
    band = axis.fill_between(x, low, high, color=style.GREY, alpha=0.18, linewidth=0)
    (mean,) = axis.plot(x, ys(results, curve.values), **RANDOM)
    handles["random: mean and range"] = (band, mean)


def _explain(results: Sequence[Results], tolerance: Tolerance, points: Mapping[str, float]) -> Handles:
    """Return what the dashes of phases and the marks mean, where there are any."""
    out: Handles = {}
    phases = list(dict.fromkeys(phase for one in results for phase in one.phases))
    for phase in phases if len(phases) > 1 else ():
        out[phase] = _sign(color=style.GREY, linestyle=style.PHASE_DASHES[phase], linewidth=1.2)
    curves = [(one, one.curves[key]) for one in results for key in one.keys if not one.curves[key].trials]
    if any(curve.within(tolerance) for _, curve in curves):
        near = sorted({text.describe_tolerance(tolerance, one.metric) for one in results})
        out[f"chosen: within {' or '.join(near)}"] = _sign(**CHOSEN, markeredgecolor="black")
    if any(curve.collapse(one.majority) for one, curve in curves):
        out["collapse"] = _sign(**COLLAPSE, markeredgecolor="black")
    if any(one.model in points and one.lead for one in results):
        out["picked by hand"] = _sign(**PICKED, markeredgecolor="black")
    return out


def _sign(**look: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], **look)
