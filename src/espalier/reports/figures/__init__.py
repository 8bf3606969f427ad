"""Figures: one file each. The file name is the figure's name, the folder is the registry.

A file has `draw(results, tolerance, points) -> Figure | None`; None means that there is nothing to draw.
With `PER_MODEL = True` it is called for each model alone. Files that begin with an underscore are no figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, cast

from ...analysis.results import Results
from .. import style


class Figure(Protocol):
    """The module of a figure."""

    def draw(
        self, results: Sequence[Results], tolerance: float, points: Mapping[str, float]
    ) -> style.Figure | None:
        """Return the figure of some results, or None if there is nothing to draw."""


def names() -> list[str]:
    """List the figures."""
    return sorted(info.name for info in iter_modules(__path__) if not info.name.startswith("_"))


def load(name: str) -> Figure:
    """Return a figure by its name."""
    return cast(Figure, import_module(f"{__name__}.{name}"))
