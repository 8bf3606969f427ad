"""The figure of a sparsity study: what was measured against the weights that are zero.

Below stands the sparsity of the pruned matrices, above how many times smaller the whole model is, which is
less. Lines are solid at once, dashed after recovery, dotted and dashed where weights went on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...analysis.sparsity import AT_ONCE, GRADUAL, RECOVERED, Line, Study
from .. import style, words
from ..sparsity_tables import times

DASHES: dict[str, Any] = {AT_ONCE: "-", RECOVERED: (0, (4, 1.6)), GRADUAL: (0, (5, 1.4, 1, 1.4))}
PALETTE = (*style.COLOURS.values(), *style.OTHERS)
MARKERS = (*style.MARKERS.values(), *style.OTHER_MARKERS)
KNEE: dict[str, Any] = {
    "marker": "|",
    "markersize": 14,
    "markeredgewidth": 2.4,
    "linestyle": "none",
}
DEAD: dict[str, Any] = {"marker": "x", "markersize": 8, "markeredgewidth": 1.8, "linestyle": "none"}
HEIGHT = 3.0


def draw(studies: Sequence[Study], within: float) -> Any:
    """A panel for what was done at once and, beside it, one for what was trained."""
    panels = [(study, ways) for study in studies for ways in _sides(study)]
    if not panels:
        return None
    figure, axes = style.panels([HEIGHT] * len(panels))
    labels = list(dict.fromkeys(label for study in studies for label in study.labels))
    handles: dict[str, Any] = {}
    across: dict[str, Any] = {}
    for axis, (study, ways) in zip(axes, panels):
        _axes(axis, study, ways)
        for label in study.labels:
            for way in ways:
                if (label, way) in study.lines:
                    drawn = _line(axis, study, study.lines[label, way], within, labels.index(label))
                    handles.setdefault(style.text(label), drawn)
        across |= _levels(axis, study)
    handles |= across | _signs(studies, within)
    style.legend_below(figure, handles)
    return figure


def _sides(study: Study) -> list[list[str]]:
    trained = [way for way in study.ways if way != AT_ONCE]
    return [ways for ways in ([AT_ONCE] if AT_ONCE in study.ways else [], trained) if ways]


def _line(axis: Any, study: Study, line: Line, within: float, place: int) -> Any:
    colour, marker = PALETTE[place % len(PALETTE)], MARKERS[place % len(MARKERS)]
    levels = [100 * point.level for point in line.points]
    shown = [study.show(point.value) for point in line.points]
    axis.plot(
        levels,
        shown,
        color=colour,
        marker=marker,
        markersize=3.6,
        linewidth=1.2,
        linestyle=DASHES[line.way],
    )
    for level, how in ((line.knee(within), KNEE), (line.collapse(), DEAD)):
        point = line.at(level) if level else None
        if point is not None:
            height = study.show(point.value)
            mark = {**how, "markeredgecolor": colour, "clip_on": False}  # whole, also at the edge
            axis.plot([100 * point.level], [height], **mark, zorder=6)
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, marker=marker, markersize=3.6, linewidth=1.2)


def _levels(axis: Any, study: Study) -> dict[str, Any]:
    dense = axis.axhline(study.show(study.dense.value), color="black", linewidth=0.7, linestyle=(0, (4, 3)))
    found = {"dense": dense}
    if study.majority is not None:
        guess = axis.axhline(study.majority, color="black", linewidth=0.8, linestyle=(0, (1, 2)))
        found["most frequent class"] = guess
    return found


def _axes(axis: Any, study: Study, ways: Sequence[str]) -> None:
    from matplotlib.ticker import FuncFormatter

    levels = study.levels
    ticks = levels[:: max(1, -(-len(levels) // 8))]
    axis.set_xticks([100 * level for level in ticks])
    axis.set_xlabel("weights of the pruned matrices that are zero, %")
    axis.set_ylabel(words.NAMES.get(study.metric, study.metric))
    if study.metric in words.SHARES:
        axis.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.6g} %"))
    said = AT_ONCE if list(ways) == [AT_ONCE] else " and ".join(ways)
    axis.set_title(f"{style.text(study.model)}, {said}")
    room = 6 * (levels[-1] - levels[0]) or 3  # the last label of the top axis stays inside the figure
    axis.set_xlim(100 * levels[0] - room, 100 * levels[-1] + room)
    axis.set_ylim(*_heights(study))
    axis.grid(axis="y")
    top = axis.secondary_xaxis("top")
    top.set_xticks([100 * level for level in ticks])
    top.set_xticklabels([_times(study, level) for level in ticks])
    top.set_xlabel("times smaller, the whole model, if zeros cost nothing", fontsize=7)
    top.spines["top"].set_visible(True)


def _heights(study: Study) -> tuple[float, float]:
    """The same for all panels of a study, so that they can be compared."""
    found = [study.dense.value, *([] if study.majority is None else [study.majority])]
    found += [point.value for line in study.lines.values() for point in line.points]
    shown = [study.show(value) for value in found]
    room = 0.05 * (max(shown) - min(shown)) or 0.01
    return min(shown) - room, max(shown) + room


def _times(study: Study, level: float) -> str:
    """2.03×: that of any line, for at one sparsity they are alike but for rounding by rows."""
    for line in study.lines.values():
        point = line.at(level)
        if point is not None:
            return times(point.row["compression"]["model"])
    return ""


def _signs(studies: Sequence[Study], within: float) -> dict[str, Any]:
    """What the dashes and marks mean, where there are any."""
    from matplotlib.lines import Line2D

    ways = list(dict.fromkeys(way for study in studies for way in study.ways))
    found: dict[str, Any] = {
        way: Line2D([], [], color=style.GREY, linestyle=DASHES[way], linewidth=1.2) for way in ways
    }
    lines = [line for study in studies for line in study.lines.values()]
    near = words.within(within, studies[0].metric)
    if any(line.knee(within) for line in lines):
        found[f"knee: within {near}"] = Line2D([], [], **KNEE, markeredgecolor="black")
    if any(line.collapse() for line in lines):
        found["collapse"] = Line2D([], [], **DEAD, markeredgecolor="black")
    return found
