"""The curves: the metric against units removed, every level drawn; random removal as mean and range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..results import Results
from . import style

RANDOM = {"color": style.GREY, "linewidth": 1.0, "linestyle": (0, (3, 1, 1, 1))}


def draw(every: Sequence[Results]) -> Any:
    """One panel for each model."""
    found = [results for results in every if results.labels]
    if not found:
        return None
    figure, axes = style.panels([style.CURVE] * len(found))
    labels = list(dict.fromkeys(label for results in found for label in results.curves))
    handles: dict[str, Any] = {}
    for axis, results in zip(axes, found):
        style.axis_of(axis, results)
        for trials in results.trials.values():
            low, mean, high = trials.lowest(), trials.mean(), trials.highest()
            ends = [[results.show(v) for v in c.accuracy] for c in (low, high)]
            band = axis.fill_between(
                trials.removed, *ends, color=style.GREY, alpha=0.18, linewidth=0
            )
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
        base = axis.axhline(
            results.show(results.base),
            color="black",
            linewidth=0.6,
            linestyle=(0, (4, 3)),
            zorder=1,
        )
        handles.setdefault("unpruned", base)
    order = [style.text(x) for x in labels] + ["random: mean and range", "unpruned"]
    style.legend_below(figure, {name: handles[name] for name in order if name in handles})
    return figure
