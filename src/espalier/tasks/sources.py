"""A task by its name: demo, a GLUE task, a file or folder, a dataset of the hub, a Python file of yours."""

from __future__ import annotations

from typing import Any

from ..core.errors import EspalierError
from ..io import plugin
from .demo import demo
from .files import from_files, is_files
from .hub import GLUE, from_hub
from .task import Examples, Task


def names() -> dict[str, str]:
    """The short names, and what they are."""
    return {
        "demo": (demo.__doc__ or "").rstrip("."),
        **{name: f"GLUE, judged by {metric}" for name, metric in GLUE.items()},
        "FILE or FOLDER": "TSV, CSV, JSONL, Parquet or text, .gz or not; train, dev, test by their names",
        "train=FILE,test=FILE": "parts in files of any name",
        "OWNER/NAME[:CONFIG]": "a dataset of the hub",
        "FILE.py": "a Python file of yours that defines task(seed)",
    }


def load(
    name: str,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    seed: int = 0,
) -> Task:
    """A task. Columns are recognised unless given; missing parts are made by a seeded split."""
    columns: dict[str, Any] = {"text": text, "pair": pair, "label": label}
    if name == "demo":
        return demo(seed)
    if name.endswith(".py"):
        made = getattr(plugin.run(name), "task", None)
        try:
            task = made(seed) if callable(made) else made
        except Exception as error:
            raise EspalierError(f"task(seed) of {name} fails: {type(error).__name__}: {error}") from error
        parts = [getattr(task, part, None) for part in ("train", "validation", "test")]
        if not isinstance(task, Task) or not all(isinstance(part, Examples) for part in parts):
            raise EspalierError(
                f"{name} defines no function task(seed) that returns a Task(name, train, validation, test) "
                "of Examples(texts, pairs, labels)"
            )
        return task
    if is_files(name):
        return from_files(name, seed=seed, **columns)
    return from_hub(name, seed=seed, **columns)
