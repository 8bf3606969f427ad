"""What every verb does besides its work: check keywords, explain refusals, say what an interruption kept.

`Keywords` is what each keyword accepts, checked before anything is read or computed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ..core.call import CALL
from ..core.errors import EspalierError, FolderError, InvalidValueError
from ..core.progress import OnProgress, Progress
from ..io.paths import CONFIG, ROWS, TRAINING_STATE_FOLDER, budget_beside, problem_of, run_beside
from ..io.rows import read_rows
from ..training.folder import read_state, state_file
from ..training.trackers import parse_trackers

Given = ParamSpec("Given")
Result = TypeVar("Result")


def verb(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Check the keywords of a verb first, explain what the system refuses, and what an interruption kept."""

    parameters = signature(function).parameters.values()
    several = [p.name for p in parameters if "Sequence[int]" in str(p.annotation)]
    optional = {p.name for p in parameters if "None" in str(p.annotation)}

    @wraps(function)
    def run(*args: Given.args, **options: Given.kwargs) -> Result:
        given = _given(function, args, options)
        check_keywords({k: v for k, v in given.items() if v is not None or k not in optional}, several)
        if "on_progress" in options:
            options["on_progress"] = _forward(options["on_progress"])  # type: ignore[arg-type]
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


def _forward(on_progress: OnProgress) -> OnProgress:
    """Return a callback through which all stages of a verb report."""

    def report(now: Progress) -> None:
        on_progress(now)

    return report


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
        kept = "; ".join(filter(None, [kept, f"what is finished is in {budget_beside(folder)}"]))
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


def _check_name(name: Any) -> Any:
    """Check a name, a path, or files as `train=a.tsv,test=b.tsv`; objects in memory pass."""
    pieces = name.split(",") if isinstance(name, str) and "=" in name else [name]
    for piece in pieces:
        if isinstance(piece, (str, os.PathLike)) and (problem := problem_of(piece)):
            raise ValueError(f"{problem}")
    return name


def _check_path(path: Any) -> Any:
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise ValueError("a path")
    return _check_name(path)


Place = Annotated[Any, AfterValidator(_check_name)]  # a name, a path, or an object in memory
Folder = Annotated[Any, AfterValidator(_check_path)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Tokens = Annotated[int, Field(ge=1, le=10**7)]
Epochs = Annotated[int, Field(ge=0, le=10**6)]
Seed = Annotated[int, Field(ge=0, lt=2**62)]
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]


class Keywords(BaseModel):
    """Every keyword that has a type of its own; the verbs check what depends on others."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, protected_namespaces=())

    model: Place = None
    task: Place = None
    folder: Folder = None
    run: Folder = None
    recipe: Folder = None
    teacher: Place = None
    against: Place = None
    of: Place = None
    metric: Name | None = None
    kind: Name | None = None
    text: Annotated[str, Field(min_length=1, max_length=100_000)] | None = None  # also what show_tokens reads
    pair: Name | None = None
    label: Name | None = None
    calibration: Count | None = None
    validation: Count | None = None
    test: Count | None = None
    calibration_batch_size: Count | None = None
    max_length: Tokens = 1
    seed: Seed = 0
    split_seed: Seed = 0
    precision: Name = "fp32"
    cache: Annotated[float, Field(ge=0, le=10**6)] = 0
    device_map: Name | dict[str, Any] | None = None
    trust_remote_code: bool = False
    trust: bool = False
    target: Name = "heads"
    method: Name | None = None
    scope: Name | None = None
    schedule: Name | None = None
    epochs: Epochs = 0
    batch_size: Count = 1
    lr: Annotated[float, Field(gt=0, le=1000)] = 1
    examples: Count | None = None
    optimizer: Name = "adamw"
    lr_schedule: Name = "linear"
    lr_end: Annotated[float, Field(ge=0, le=1000)] = 0
    weight_decay: Annotated[float, Field(ge=0, le=1000)] = 0
    clip: Annotated[float, Field(ge=0, le=10**6)] = 1
    vocabulary: Count | None = None
    overwrite: bool = False
    track: Name | None = None
    corpus: Folder = None
    languages: Name | None = None
    min_count: Count = 1
    repair: Name | None = None
    multiple: Count = 1
    stage: Annotated[float, Field(ge=0, lt=1)] = 0
    rearrange: bool = False
    repair_stages: bool = True
    search: Name = "stages"
    least_heads: Share = 0
    lookahead: Count = 1
    mask_interval: Count | None = None
    initial: Share = 0
    until: Share = 0
    ste: bool = False
    penalty: Annotated[float, Field(ge=0, le=10**6)] | None = None
    form: Name = "exact"
    delay: Share = 0
    warmup: Share = 0
    init: Annotated[float, Field(ge=-50, le=50)] = 2
    scaled: bool = True
    gate_lr: Annotated[float, Field(gt=0, le=1000)] | None = None
    untrained: bool = False
    l1: Annotated[float, Field(ge=0, le=10**6)] = 0
    every: Count | None = None
    all_scores: bool = False
    timed: bool = False
    dry_run: bool = False
    axis: Name = "removed"
    port: Annotated[int, Field(ge=1, lt=2**16)] = 1
    figures: bool = True
    published: bool = False
    way: Name = "finetune"
    lora: Annotated[int, Field(ge=1, le=10**4)] | None = None
    distillation: dict[str, float] | None = None
    points: dict[str, int] | None = None
    rounds: Count = 1
    tokens: Tokens = 1
    few: Count = 1
    sample: Count = 1
    name: Place = None
    source: Place = None
    int8: bool = False
    kv_cache: bool = True
    to: Name = "plain"
    ranges: Name | None = None
    memory: bool = False
    infer: bool = False
    private: bool = False
    plan: Place = None
    figure: Folder = None
    least: Count = 1
    values: Annotated[list[Share] | tuple[Share, ...], Field(max_length=10**4)] | None = None


def check_keywords(given: Mapping[str, Any], several: Collection[str] = ()) -> None:
    """Raise for the first value that its keyword does not accept; `several` may be lists of values."""
    for name in several:
        if isinstance(given.get(name), (list, tuple)):
            for value in given[name]:
                check_keywords({name: value})
            given = {other: value for other, value in given.items() if other != name}
    for name, message in find_wrong_keywords(given):
        raise InvalidValueError(message, name)
    if given.get("track"):
        parse_trackers(given["track"], given.get("folder"))


def find_wrong_keywords(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return every keyword whose value is not accepted, and what it must be."""
    known = {name: _plain(value) for name, value in given.items() if name in Keywords.model_fields}
    try:
        Keywords.model_validate(known)
    except ValidationError as error:
        return [_explain(one, given) for one in error.errors()]
    return []


def _explain(error: Any, given: Mapping[str, Any]) -> tuple[str, str]:
    name, wanted = str(error["loc"][0]), error["msg"].removeprefix("Value error, ")
    wanted = wanted.removeprefix("Input should be ")
    shown = repr(str(given[name]) if isinstance(given[name], os.PathLike) else given[name])
    shown = shown if len(shown) < 60 else shown[:57] + "…"
    return name, f"`{name}` must be {wanted}; got {shown}"


def _plain(value: Any) -> Any:
    """Return a number of numpy as one of Python."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value
