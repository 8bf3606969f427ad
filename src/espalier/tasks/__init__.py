"""Tasks: labelled texts in three splits that share no text."""

from __future__ import annotations

from .sources import descriptions, load, name_of, names
from .task import Examples, Task

__all__ = ["Examples", "Task", "descriptions", "load", "name_of", "names"]
