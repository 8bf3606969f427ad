"""Tasks: text with answers, in three parts that share no text. The drawer of where they come from."""

from __future__ import annotations

from .sources import load, names
from .task import Examples, Task

__all__ = ["Examples", "Task", "load", "names"]
