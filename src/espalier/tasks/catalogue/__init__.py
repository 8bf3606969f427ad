"""Named tasks. Every file here has a dictionary TASKS of them; the folder is the registry."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import NamedTuple

from ..task import Task


class NamedTask(NamedTuple):
    """A task that is loaded by a name, as `load(text=, pair=, label=, seed=)`."""

    about: str
    load: Callable[..., Task]


def named_tasks() -> dict[str, NamedTask]:
    """Return the tasks of all files in this folder, by name."""
    modules = [import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__)]
    return {name: task for module in modules for name, task in module.TASKS.items()}
