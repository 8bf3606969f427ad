"""Figures: one file each. The file name is the figure's name, the folder is the registry.

A file has `draw(results, tolerance, points) -> Figure | None`; None means that there is nothing to draw.
With `PER_MODEL = True` it is called for each model alone. Files that begin with an underscore are no figures.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType


def names() -> list[str]:
    """List the figures."""
    return sorted(info.name for info in iter_modules(__path__) if not info.name.startswith("_"))


def load(name: str) -> ModuleType:
    """Return the module of a figure."""
    return import_module(f"{__name__}.{name}")
