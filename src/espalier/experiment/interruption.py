"""What an interrupted verb has kept in its folders, and how to resume."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import ParamSpec, TypeVar

from ..core.errors import EspalierError
from ..io.paths import CONFIG, ROWS, TRAINING_STATE_FOLDER, run_beside
from ..io.rows import read_rows
from ..training.folder import read_state, state_file

Given = ParamSpec("Given")
Result = TypeVar("Result")


def resumable(verb: Callable[Given, Result]) -> Callable[Given, Result]:
    """Attach to an interruption of the verb what its `folder`, and the run beside it, hold by then."""

    @wraps(verb)
    def call(*args: Given.args, **options: Given.kwargs) -> Result:
        try:
            return verb(*args, **options)
        except KeyboardInterrupt as error:
            folder = signature(verb).bind(*args, **options).arguments.get("folder")
            error.add_note(describe_kept(None if folder is None else Path(folder)))
            raise

    return call


def describe_kept(folder: Path | None) -> str:
    """Say what a folder and the run beside it hold, and what to do."""
    places = [] if folder is None else [folder, run_beside(folder)]
    kept = "; ".join(filter(None, map(_describe, places)))
    return f"{kept}. Repeat it to resume" if kept else "nothing was written. Repeat it to start over"


def _describe(folder: Path) -> str:
    try:
        if state_file(folder).exists():
            return f"the state after step {read_state(state_file(folder))[0]['step']} is in {folder}"
        if (folder / TRAINING_STATE_FOLDER).is_dir():
            return f"a training was begun in {folder}, without a state yet"
        if (folder / ROWS).is_file():
            return f"{len(read_rows(folder / ROWS))} rows are in {folder}"
        return f"the model in {folder} is whole" if (folder / CONFIG).is_file() else ""
    except EspalierError as error:
        return f"what {folder} holds cannot be read: {error}"
