"""A model that can answer a task: loaded from a name or folder, or a live one, with its tokenizer."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
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
from ..core.terminal import log
from ..core.types import PreTrainedModel, PreTrainedTokenizerBase
from ..io.files import read_json
from ..io.paths import CONFIG, PLAN, ROWS, TRAINING_RECORD, TRAINING_STATE_FOLDER, is_exported, named_path
from ..storage.resolve import access, check_size, config_of, weights_path
from ..tasks import Task
from ..tasks.task import SIMILARITY
from .classes import PROBLEMS, check_problem
from .embedder import remove_pooler


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
    tokenizer: PreTrainedTokenizerBase | str | None = None,
    trust_remote_code: bool = False,
    device_map: str | None = None,
    new_head: int | None = None,
) -> OpenedModel:
    """Return a model that can answer the task, in fp32 and in eval mode; a live model is copied.

    A model without a trained head for the task is an error, unless `new_head` is a seed to draw one by.
    """
    if not isinstance(model, (str, Path)):
        if new_head is None:
            check_problem(task, model.config)
        if tokenizer is None or isinstance(tokenizer, str):
            raise InvalidValueError("a live model needs its `tokenizer`, as an object", "tokenizer")
        return _from_live(model, tokenizer)
    name = str(model)
    check_holds_model(Path(name))
    path = weights_path(name, trust_remote_code=trust_remote_code)
    if new_head is None:
        check_problem(task, config_of(path, trust_remote_code=trust_remote_code, allow_type=False))
    check_size(Path(path), trust_remote_code=trust_remote_code)
    options: dict[str, Any] = {"device_map": device_map} if device_map else {}
    if new_head is not None:
        torch.manual_seed(new_head)
        options |= {"ignore_mismatched_sizes": True, **_head_for(task)}
    loaded, found = _load(name, path, task, tokenizer, trust_remote_code, options, new=new_head is not None)
    _align(loaded)
    found = with_padding(loaded, found)
    folder = Path(name) if Path(name).is_dir() else None
    return OpenedModel(
        short_name(name),
        loaded.eval(),
        found,
        _stored_dtype(path, trust_remote_code),
        _pruned_also(folder),
        folder,
    )


def _from_live(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> OpenedModel:
    stored = model.dtype if model.dtype in (torch.float16, torch.bfloat16) else torch.float32
    check_vocabulary(type(model).__name__, tokenizer)
    own: Any = copy.deepcopy(model).float().eval()
    tokenizer = with_padding(own, tokenizer)
    return OpenedModel(live_name(model), own, tokenizer, stored)


def live_name(model: PreTrainedModel) -> str:
    return short_name(str(getattr(model.config, "_name_or_path", "") or "") or type(model).__name__)


def _load(
    name: str,
    path: str,
    task: Task,
    tokenizer: Any,
    trust_remote_code: bool,
    options: dict[str, Any],
    *,
    new: bool,
) -> tuple[Any, Any]:
    import transformers

    auto = {
        "classification": transformers.AutoModelForSequenceClassification,
        "regression": transformers.AutoModelForSequenceClassification,
        "similarity": transformers.AutoModel,
        "language": transformers.AutoModelForCausalLM,
    }[task.kind]
    code: Any = {"trust_remote_code": trust_remote_code}
    try:
        with access(path):
            if tokenizer is None or isinstance(tokenizer, (str, Path)):
                tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer or path, **code)
            check_vocabulary(name, tokenizer)
            loading: Any = {"dtype": torch.float32, "output_loading_info": True, **code, **options}
            model, info = auto.from_pretrained(path, **loading)
    except EspalierError:
        raise
    except Exception as error:  # a checkpoint can be wrong in more ways than there are error types
        first = " ".join(str(error).split()) or type(error).__name__
        if type(error).__name__ == "UnpicklingError":  # its message advises to run what is in the file
            first = "its weights are a pickle that is damaged or holds code. Give them as model.safetensors"
        raise FormatError(f"cannot load {name}: {first}", name) from error
    if task.kind == SIMILARITY:
        remove_pooler(name, model, info)
    else:
        _check_head(name, model, info, new, pairs=task.train.pairs is not None)
    return model, tokenizer


def is_language_model(model: str | Path | PreTrainedModel, *, trust_remote_code: bool = False) -> bool:
    """Whether a model predicts the next token, by the name of its class; False if there is no such model."""
    if not isinstance(model, (str, Path)):
        names = [type(model).__name__]
    else:
        try:
            path = weights_path(str(model), trust_remote_code=trust_remote_code)
            config = config_of(path, trust_remote_code=trust_remote_code, allow_type=False)
        except EspalierError:  # said when it is loaded
            return False
        names = list(config.architectures or ())
    return any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names)


def _head_for(task: Task) -> dict[str, Any]:
    """What a config must hold for the model to answer the task."""
    if task.kind == "language":
        return {}
    if task.kind == "regression":
        return {"num_labels": 1, "problem_type": PROBLEMS[task.kind]}
    classes = dict(enumerate(task.classes))
    names = {name: i for i, name in classes.items()}
    head = {"num_labels": len(classes), "id2label": classes, "label2id": names}
    return head | {"problem_type": PROBLEMS[task.kind]}


def _check_head(name: str, model: Any, info: dict[str, Any], new: bool, pairs: bool) -> None:
    """Only a head may be new, and only where one is to be trained."""
    missing = sorted(info["missing_keys"])
    layers = [k for k in missing if k.startswith(f"{model.base_model_prefix}.") and re.search(r"\.\d+\.", k)]
    if layers:
        raise FormatError(f"cannot load {name}: the weights of {layers[0]} and others are missing", name)
    if missing and not new:
        other = '; if the labels say how alike two texts are, give `kind="similarity"`' if pairs else ""
        raise UnsupportedError(
            f"{name} has no trained head for this task ({', '.join(missing[:3])} missing), so it would "
            f"predict noise. Train one first with espalier.train{other}"
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


def _pruned_also(folder: Path | None) -> tuple[str, ...]:
    """What outside the blocks was pruned in a folder, by its plan: zeros alone would not show it."""
    named = _origin_in(folder).get("also")
    return also_in_order(map(str, named)) if isinstance(named, list) else ()


def original_of(folder: Path | None) -> dict[str, Any] | None:
    """What the model that a folder's one was first made of reached, if it is known."""
    found = _origin_in(folder).get("original")
    return found if isinstance(found, dict) else None


def _origin_in(folder: Path | None) -> dict[str, Any]:
    path = folder / PLAN if folder else None
    origin = read_json(path).get("origin") if path and path.is_file() else None
    return origin if isinstance(origin, dict) else {}


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
    named_path(folder, "model")
    state = folder / TRAINING_STATE_FOLDER
    if state.is_dir() and not state.is_symlink():
        raise FolderError(f"{folder} holds an unfinished training; repeat the same call to resume it", folder)
    if is_exported(folder):
        raise FolderError(
            f"{folder} holds a model for another runtime, which can be evaluated and measured only. Give the "
            "model that it was exported from",
            folder,
        )
    if (folder / CONFIG).is_file():
        return
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


def check_vocabulary(name: str, tokenizer: Any) -> None:
    """Raise if a tokenizer has no words: transformers makes one of special tokens where it finds no files."""
    special = set(tokenizer.all_special_tokens)
    if not any(token not in special and any(map(str.isalnum, token)) for token in tokenizer.get_vocab()):
        raise FolderError(
            f"{name} has no tokenizer: its vocabulary holds {len(special)} special tokens and no word. Save "
            "the tokenizer that the model was trained with beside it (tokenizer.json), or pass it as "
            "`tokenizer`",
            name,
        )


def with_padding(model: Any, tokenizer: Any) -> Any:
    """Return a tokenizer that can pad, and name its token in the model's config.

    A classifier that reads the last token finds it by that name, so both must agree.
    """
    config = model.config.get_text_config()
    if tokenizer.pad_token_id is None:
        tokenizer = copy.deepcopy(tokenizer)  # it may be the caller's
        known = config.pad_token_id
        named = None if known is None or known < 0 else tokenizer.convert_ids_to_tokens(known)
        others = (named, tokenizer.eos_token, tokenizer.unk_token, tokenizer.bos_token)
        tokenizer.pad_token = next((token for token in others if token is not None), None)
        if tokenizer.pad_token_id is None:
            raise DataError("the tokenizer has no token to pad with. Give it a pad_token")
        config.pad_token_id = tokenizer.pad_token_id
    elif config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
    return tokenizer
