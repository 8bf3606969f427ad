"""A new language model of words for a corpus: from a model type of our own, or from a config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..core.errors import DataError, InvalidValueError, UnknownNameError, UnsupportedError
from ..io.paths import CONFIG, is_exported
from ..storage.resolve import config_of, has_weights, own_types
from ..tasks import Task
from ..tasks.words import words_of
from .model import OpenedModel, short_name


def is_new(model: Any) -> bool:
    """Whether a name stands for a model without weights: a registered type, a config, a folder with one."""
    if not isinstance(model, (str, Path)):
        return False
    path = Path(model)
    if path.is_dir():
        return (path / CONFIG).is_file() and not has_weights(path) and not is_exported(path)
    return path.suffix == ".json" if path.is_file() else str(model) in own_types()


def make_model(
    model: str | Path,
    task: Task,
    *,
    sizes: Mapping[str, Any],
    vocabulary: int | None = None,
    tokenizer: Any = None,
    seed: int = 0,
) -> OpenedModel:
    """Return a random model whose vocabulary is that of the task's training text, drawn by a seed.

    `sizes` are values of its config; `vocabulary` limits the words to the most frequent ones.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if task.kind != "language":
        raise UnsupportedError(
            f"{model} has no weights, and a new model is trained on running text; {task.name} has labels"
        )
    named = config_of(str(model))
    folder = Path(model) if Path(model).is_dir() else None
    if tokenizer is None and folder is not None and (folder / "tokenizer.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer is None:
        tokenizer = words_of(task, most=vocabulary)
    given = {} if str(model) in own_types() else named.to_dict()
    given = {name: value for name, value in given.items() if name != "model_type"} | dict(sizes)
    words = given.setdefault("vocab_size", len(tokenizer))
    if words != len(tokenizer):
        raise DataError(
            f"the config of {model} has {words} words, the text {len(tokenizer)}: leave `vocab_size` out, or "
            "set `vocabulary` to the number of words to keep"
        )
    if "cutoffs" not in given and hasattr(named, "cutoffs"):
        given["cutoffs"] = [end for end in named.cutoffs if end < words]
    config = type(named)(**given)
    torch.manual_seed(seed)
    made: Any = AutoModelForCausalLM.from_config(config)
    return OpenedModel(short_name(str(model)), made.eval(), tokenizer)


def take_sizes(model: Any, options: dict[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Take those options out that are values of a new model's config; raise for some of a trained one."""
    if not isinstance(model, (str, Path)):
        return {}
    unknown = [name for name in options if name not in known]
    if not unknown or not is_new(model):
        return {}
    fields = config_of(str(model)).to_dict()
    for name in unknown:
        if name not in fields:
            raise UnknownNameError("option", name, [*fields, *known], name)
    sizes = {name: options.pop(name) for name in unknown}
    for name, value in sizes.items():
        wanted = fields[name]
        numbers = isinstance(wanted, int | float) and not isinstance(wanted, bool)
        if numbers and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
            raise InvalidValueError(f"`{name}` must be a number, as {wanted}; got {value!r}", name)
        if isinstance(wanted, (list, tuple)):
            values = str(value).split(",") if isinstance(value, str | int) else value
            sizes[name] = [int(one) for one in values if str(one).strip()]
    return sizes
