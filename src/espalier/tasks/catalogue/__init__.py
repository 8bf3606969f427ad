"""Named tasks. Every file here has a dictionary TASKS of them; the folder is the registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..task import Task


class NamedTask(NamedTuple):
    """A task that is loaded by a name, as `load(text=, pair=, label=, seed=)`."""

    about: str
    load: Callable[..., Task]
