"""What each keyword of the verbs accepts, checked before anything is read or computed."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ..core.errors import InvalidValueError
from ..io.paths import problem_of
from ..training.trackers import parse_trackers


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
    kind: Name | None = None
    text: Name | None = None
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
    search: Name = "stages"
    least_heads: Share = 0
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
    values: Annotated[list[Share], Field(max_length=10**4)] | None = None


def check_keywords(given: Mapping[str, Any], several: Collection[str] = ()) -> None:
    """Raise for the first value that its keyword does not accept; `several` may be lists of values."""
    for name in several:
        if isinstance(given.get(name), (list, tuple)):
            for value in given[name]:
                check_keywords({name: value})
            given = {other: value for other, value in given.items() if other != name}
    for name, message in find_wrong_keywords(given):
        raise InvalidValueError(message, name)
    parse_trackers(given.get("track"), given.get("folder"))


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
