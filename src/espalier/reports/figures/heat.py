"""Heat maps of scores: how much each criterion thinks each unit of the unpruned model matters."""

from __future__ import annotations

from textwrap import fill
from typing import Any

from ...analysis.results import Results
from .. import maps, style, words

LETTERS = 20  # of the smallest print in an inch


def draw(results: Results) -> Any:
    """One panel for each criterion, each with its own scale: scores of two criteria have no common unit."""
    if not results.scores:
        return None
    figure, axes = style.panels([maps.height(results.layers)] * len(results.scores))
    room = max(8, int(LETTERS * maps.CELL * len(results.layers)))
    for axis, (criterion, grid) in zip(axes, results.scores.items()):
        mesh = maps.paint(axis, grid, results.layers, cmap=style.SEQUENCE)
        maps.name_axes(axis, results)
        axis.set_title(style.text(criterion))
        about = words.SCORES.get(criterion.partition(":")[0], "score")
        style.scale_beside(axis, mesh, fill(about, room))
    figure.suptitle(f"{style.text(results.model)}: scores of the unpruned model")
    return figure
