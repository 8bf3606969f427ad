"""What every verb does besides its work: check keywords, explain refusals, say what an interruption kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ..core.call import CALL
from ..core.errors import EspalierError, FolderError
from ..core.progress import forward
from ..io.paths import CONFIG, ROWS, TRAINING_STATE_FOLDER, budget_beside, run_beside
from ..io.rows import read_rows
from ..training.folder import read_state, state_file
from .keywords import check_keywords

Given = ParamSpec("Given")
Result = TypeVar("Result")


def verb(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Check the keywords of a verb first, explain what the system refuses, and what an interruption kept."""

    parameters = signature(function).parameters.values()
    several = [p.name for p in parameters if "Sequence[int]" in str(p.annotation)]

    @wraps(function)
    def run(*args: Given.args, **options: Given.kwargs) -> Result:
        given = _given(function, args, options)
        check_keywords(given, several)
        if "on_progress" in options:
            options["on_progress"] = forward(options["on_progress"])  # type: ignore[arg-type]
        call = None if CALL.get() else CALL.set(describe_call(function.__name__, given))
        try:
            return function(*args, **options)
        except KeyboardInterrupt as error:
            folder = given.get("folder")
            error.add_note(describe_kept(None if folder is None else Path(folder)))
            raise
        except OSError as error:
            where = error.filename or given.get("folder") or "a file"
            raise FolderError(f"cannot use {where}: {error.strerror or error}", where) from error
        finally:
            if call is not None:
                CALL.reset(call)

    return run


def _given(function: Callable[..., Any], args: Any, options: Any) -> dict[str, Any]:
    """Return the arguments of a call by name, those of `**options` among them."""
    bound = signature(function).bind(*args, **options).arguments
    further = [p.name for p in signature(function).parameters.values() if p.kind is p.VAR_KEYWORD]
    return bound | {name: value for one in further for name, value in bound.get(one, {}).items()}


def describe_call(name: str, given: Mapping[str, Any]) -> str:
    """Return a call as it can be typed in Python; objects that live in memory appear by their type."""
    plain = (str, int, float, bool, list, tuple, dict, type(None))
    shown = []
    for key, value in given.items():
        if key != "on_progress" and value is not None:
            text = repr(str(value) if isinstance(value, Path) else value)
            shown.append(
                f"{key}={text if isinstance(value, (Path, *plain)) else f'<{type(value).__name__}>'}"
            )
    return f"espalier.{name}({', '.join(shown)})"


def describe_kept(folder: Path | None) -> str:
    """Say what a folder and the run beside it hold, and what to do."""
    places = [] if folder is None else [folder, run_beside(folder), *sorted(folder.glob("*-*"))]
    kept = "; ".join(filter(None, map(_describe, places)))
    if folder is not None and budget_beside(folder).is_file():
        kept = "; ".join(filter(None, [kept, f"what was scored is in {budget_beside(folder)}"]))
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
