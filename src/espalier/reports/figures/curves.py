"""The curves: the metric against units removed, every level drawn; random removal as mean and range.

A tick marks where the rule would stop, a star what was picked by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...analysis.results import Results
from .. import style, words

TICK: dict[str, Any] = {
    "marker": "|",
    "markersize": 13,
    "markeredgewidth": 2.2,
    "linestyle": "none",
}
STAR = {
    "marker": "*",
    "markersize": 9,
    "markerfacecolor": "white",
    "markeredgewidth": 0.9,
    "linestyle": "none",
}
RANDOM = {"color": style.GREY, "linewidth": 1.0, "linestyle": (0, (3, 1, 1, 1))}


def draw(every: Sequence[Results], within: float = 0.01, points: Mapping[str, int] | None = None) -> Any:
    """One panel for each model."""
    found = [results for results in every if results.labels]
    if not found:
        return None
    figure, axes = style.panels([style.CURVE] * len(found))
    labels = list(dict.fromkeys(label for results in found for label in results.curves))
    handles: dict[str, Any] = {}
    for axis, results in zip(axes, found):
        style.axis_of(axis, results)
        for trials in [results.trials[results.random]] if results.random else []:
            low, mean, high = trials.lowest(), trials.mean(), trials.highest()
            ends = [[results.show(v) for v in c.accuracy] for c in (low, high)]
            band = axis.fill_between(trials.removed, *ends, color=style.GREY, alpha=0.18, linewidth=0)
            shown = [results.show(v) for v in mean.accuracy]
            (middle,) = axis.plot(mean.removed, shown, **RANDOM)
            handles["random: mean and range"] = (band, middle)
        for i, (label, curve) in enumerate(results.curves.items()):
            shown = [results.show(v) for v in curve.accuracy]
            # Few markers, not on top of each other; the line itself passes through every level.
            step = max(1, len(shown) // 9)
            shift = i * step // max(1, len(results.curves))
            how = {**style.line(label, labels), "zorder": 4 if label == results.lead else 3}
            (drawn,) = axis.plot(curve.removed, shown, markevery=(shift, step), **how)
            handles.setdefault(style.text(label), drawn)
            _mark(axis, results, label, results.chosen(label, within), TICK, how["color"])
        picked = (points or {}).get(results.model)
        if picked is not None and results.lead:
            _mark(axis, results, results.lead, picked, STAR, "black")
            handles["picked by hand"] = _sign(STAR)
        base = axis.axhline(
            results.show(results.base),
            color="black",
            linewidth=0.6,
            linestyle=(0, (4, 3)),
            zorder=1,
        )
        handles.setdefault("unpruned", base)
    near = {words.within(within, results.metric) for results in found}
    tick = f"the rule: within {' or '.join(sorted(near))}"
    if any(r.chosen(label, within) for r in found for label in r.curves):
        handles[tick] = _sign(TICK)
    order = [style.text(x) for x in labels]
    order += ["random: mean and range", "unpruned", tick, "picked by hand"]
    style.legend_below(figure, {name: handles[name] for name in order if name in handles})
    return figure


def _mark(axis: Any, results: Results, label: str, removed: int, how: dict[str, Any], colour: str) -> None:
    """One point of a curve; the unpruned model, where everybody begins, is none."""
    if removed:
        height = results.show(results.curves[label].at(removed))
        axis.plot([removed], [height], **{**how, "markeredgecolor": colour}, zorder=6)


def _sign(how: dict[str, Any]) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], **{**how, "markeredgecolor": "black"})
