"""Heat maps of scores: how important each criterion finds each unit of the unpruned model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill

from ...analysis.curves import Tolerance
from ...analysis.results import Results
from .. import style
from ._axes import CELL, draw_map, map_height

PER_MODEL = True
LETTERS = 20  # of the smallest print in an inch


def draw(
    results: Sequence[Results], tolerance: Tolerance, points: Mapping[str, float]
) -> style.Figure | None:
    """Draw one panel per criterion with a scale of its own: scores of two criteria have no common unit."""
    (one,) = results
    if not one.scores:
        return None
    figure, axes = style.panels([map_height(one.layers)] * len(one.scores))
    room = max(8, int(LETTERS * CELL * len(one.layers)))
    units = {s.get("criterion"): s.get("unit") for s in one.settings.values()}
    for axis, (name, grid) in zip(axes, one.scores.items()):
        mesh = draw_map(axis, grid, one, cmap=style.SEQUENCE)
        axis.set_title(style.plain(name))
        unit = one.settings.get(name, {}).get("unit") or units.get(name.partition(":")[0])
        style.colour_bar(axis, mesh, fill(unit or "score", room))
    figure.suptitle(f"{style.plain(one.model)}: scores of the unpruned model")
    return figure
