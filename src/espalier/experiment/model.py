"""A model that can answer a task: loaded from a name or folder, or a live one, with its tokenizer."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..architectures.sites import also_in_order
from ..core.errors import (
    DataError,
    EspalierError,
    FolderError,
    FormatError,
    InvalidValueError,
    UnsupportedError,
)
from ..core.log import log
from ..core.types import PreTrainedModel, PreTrainedTokenizerBase
from ..io.files import check_replaceable, read_json
from ..io.paths import CONFIG, PLAN, ROWS, TRAINING_RECORD, TRAINING_STATE_FOLDER
from ..storage.resolve import config_of, weights_path
from ..tasks import Examples, Task


@dataclass(frozen=True)
class OpenedModel:
    """A model in fp32 with its tokenizer, and what its folder says of it."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stored: torch.dtype = torch.float32  # the dtype it was stored in
    pruned_also: tuple[str, ...] = ()  # what outside the blocks was pruned before
    folder: Path | None = None


def open_model(
    model: str | Path | PreTrainedModel,
    task: Task,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    trust_remote_code: bool = False,
    device_map: str | None = None,
    new_head: int | None = None,
) -> OpenedModel:
    """Return a model that can answer the task, in fp32 and in eval mode; a live model is copied.

    A model without a trained head for the task is an error, unless `new_head` is a seed to draw one by.
    """
    if not isinstance(model, (str, Path)):
        return _from_live(model, tokenizer)
    name = str(model)
    check_holds_model(Path(name))
    path = weights_path(name, trust_remote_code=trust_remote_code)
    options: dict[str, Any] = {"device_map": device_map} if device_map else {}
    if new_head is not None:
        torch.manual_seed(new_head)
        options |= {"ignore_mismatched_sizes": True, **_head_for(task)}
    loaded, tokenizer = _load(
        name, path, task, tokenizer, trust_remote_code, options, new=new_head is not None
    )
    _align(loaded)
    tokenizer = _with_padding(loaded, tokenizer)
    folder = Path(name) if Path(name).is_dir() else None
    return OpenedModel(
        short_name(name),
        loaded.eval(),
        tokenizer,
        _stored_dtype(path, trust_remote_code),
        _pruned_also(folder),
        folder,
    )


def _from_live(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> OpenedModel:
    if tokenizer is None:
        raise InvalidValueError("a live model needs its `tokenizer`", "tokenizer")
    stored = model.dtype if model.dtype in (torch.float16, torch.bfloat16) else torch.float32
    own: Any = copy.deepcopy(model).float().eval()
    tokenizer = _with_padding(own, tokenizer)
    name = str(getattr(model.config, "_name_or_path", "") or "") or type(model).__name__
    return OpenedModel(short_name(name), own, tokenizer, stored)


def _load(
    name: str,
    path: str,
    task: Task,
    tokenizer: PreTrainedTokenizerBase | None,
    trust_remote_code: bool,
    options: dict[str, Any],
    *,
    new: bool,
) -> tuple[Any, Any]:
    import transformers

    auto = {
        "classification": transformers.AutoModelForSequenceClassification,
        "regression": transformers.AutoModelForSequenceClassification,
        "language": transformers.AutoModelForCausalLM,
    }[task.kind]
    try:
        model, info = auto.from_pretrained(
            path,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=trust_remote_code,
            **options,
        )
        if tokenizer is None:
            tokenizer = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except EspalierError:
        raise
    except Exception as error:  # a checkpoint can be wrong in more ways than there are error types
        first = " ".join(str(error).split()) or type(error).__name__
        raise FormatError(f"cannot load {name}: {first}", name) from error
    _check_head(name, model, info, new)
    return model, tokenizer


def _head_for(task: Task) -> dict[str, Any]:
    """What a config must hold for the model to answer the task."""
    if task.kind == "language":
        return {}
    if task.kind == "regression":
        return {"num_labels": 1}
    classes = dict(enumerate(task.classes))
    names = {name: i for i, name in classes.items()}
    return {"num_labels": len(classes), "id2label": classes, "label2id": names}


def _check_head(name: str, model: Any, info: dict[str, Any], new: bool) -> None:
    """Only a head may be new, and only where one is to be trained."""
    missing = sorted(info["missing_keys"])
    if missing and not new:
        raise UnsupportedError(
            f"{name} has no trained head for this task ({', '.join(missing[:3])} missing), so it would "
            "predict noise. Train one first with espalier.train"
        )
    mismatched = sorted(str(key[0] if isinstance(key, tuple) else key) for key in info["mismatched_keys"])
    body = [key for key in mismatched if key.startswith(f"{model.base_model_prefix}.")]
    if body:
        raise FormatError(f"cannot load {name}: {body[0]} has another shape than its config", name)
    if mismatched or missing:
        log.info("new, to be learned: %s", ", ".join(sorted({*mismatched, *missing})))


def _align(model: torch.nn.Module) -> None:
    """Give weights that lie unaligned in their file memory of their own.

    Matrix products round differently by the alignment of a matrix, and a copy begins elsewhere: the same
    model would give other last digits in one process than in another.
    """
    for p in model.parameters():
        if p.device.type == "cpu" and p.data_ptr() % 64:
            p.data = p.data.clone()


def _with_padding(model: Any, tokenizer: Any) -> Any:
    """Return a tokenizer that can pad, and name its token in the model's config."""
    if tokenizer.pad_token is None:
        tokenizer = copy.deepcopy(tokenizer)  # it may be the caller's
        tokenizer.pad_token = tokenizer.eos_token
    config = model.config.get_text_config()
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
    return tokenizer


def _pruned_also(folder: Path | None) -> tuple[str, ...]:
    """What outside the blocks was pruned in a folder, by its plan: zeros alone would not show it."""
    path = folder / PLAN if folder else None
    origin = read_json(path).get("origin") if path and path.is_file() else None
    named = origin.get("also") if isinstance(origin, dict) else None
    return also_in_order(map(str, named)) if isinstance(named, list) else ()


def _stored_dtype(path: str, trust_remote_code: bool) -> torch.dtype:
    """The dtype that a model's config names; fp32 if it names none, or where dtypes are mixed."""
    plan = Path(path) / PLAN
    dtypes = read_json(plan).get("dtypes") if plan.is_file() else None
    if isinstance(dtypes, dict) and len(dtypes) > 1:
        return torch.float32
    config = config_of(path, trust_remote_code=trust_remote_code, allow_type=False)
    found = getattr(config, "dtype", None)
    return found if found in (torch.float16, torch.bfloat16) else torch.float32


def short_name(model: str) -> str:
    """Return a model's name without the path of a folder: it goes into files that are passed on."""
    return Path(model).resolve().name if Path(model).exists() else model


def check_holds_model(folder: Path) -> None:
    """Raise if a folder holds a run or an unfinished training instead of a model."""
    if (folder / CONFIG).is_file():
        return
    if (folder / TRAINING_STATE_FOLDER).is_dir():
        raise FolderError(f"{folder} holds an unfinished training; repeat the same call to resume it", folder)
    if (folder / ROWS).is_file():
        raise FolderError(
            f"{folder} holds a comparison: rows, but no weights. Make the model first with espalier.prune",
            folder,
        )


def warn_about_other_split(folder: Path | None, task: str, split_seed: int) -> None:
    """Warn if a model was trained on another split of the same task: it has seen some of the test data."""
    record = folder / TRAINING_RECORD if folder else None
    origin = read_json(record).get("origin", {}) if record and record.is_file() else {}
    if origin.get("task") == task and origin.get("split_seed", split_seed) != split_seed:
        log.warning(
            "%s was trained on %s with `split_seed` %s: with another one, test texts are training texts",
            *(folder, task, origin["split_seed"]),
        )


def check_output(folder: Path, source: str | Path | None) -> None:
    """Raise unless a pruned model may be written to a folder: not over its source, nor over a training."""
    if source is not None and Path(source).exists() and Path(source).resolve() == folder.resolve():
        raise FolderError(f"{folder} is the model itself. Choose another folder", folder)
    if (folder / TRAINING_RECORD).is_file():
        raise FolderError(
            f"{folder} holds a trained model, which would be lost. Choose another folder", folder
        )
    check_replaceable(folder)
    near = next(p for p in (folder.resolve(), *folder.resolve().parents) if p.exists())
    if not os.access(near, os.W_OK | os.X_OK):
        raise FolderError(f"cannot write to {near}. Choose another folder", folder)


def in_model_numbering(task: Task, model: Any) -> Task:
    """Return the task in the model's own numbering of the classes, where both have names for them."""
    if task.kind == "regression" and model.config.num_labels != 1:
        raise DataError(
            f"the task's labels are numbers, but the model predicts {model.config.num_labels} classes. "
            "Train a model for it first with espalier.train"
        )
    if task.kind != "classification":
        return task
    theirs = {str(name).lower(): int(i) for name, i in (model.config.label2id or {}).items()}
    ours = [name.lower() for name in task.classes]
    if set(ours) <= set(theirs) and not all(name.isdigit() for name in ours):
        order = [theirs[name] for name in ours]
        names = {i: name for name, i in theirs.items()}
        train, validation, test = (_renumber(x, order) for x in (task.train, task.validation, task.test))
        classes = tuple(names[i] for i in sorted(names))
        return replace(task, classes=classes, train=train, validation=validation, test=test)
    if not all(name.lstrip("-").isdigit() for name in ours):
        log.warning(
            "the task's classes are %s; the model's are %s. If the order differs, give them the same names",
            ", ".join(f"{i} {name}" for i, name in enumerate(task.classes)),
            ", ".join(f"{i} {name}" for name, i in sorted(theirs.items(), key=lambda x: x[1])),
        )
    if len(ours) > model.config.num_labels:
        raise DataError(
            f"the task has {len(ours)} classes, but the model predicts {model.config.num_labels}. "
            "Train a model for it first with espalier.train"
        )
    return task


def _renumber(examples: Examples, order: list[int]) -> Examples:
    if examples.labels is None:
        return examples
    return replace(examples, labels=tuple(order[int(label)] for label in examples.labels))
