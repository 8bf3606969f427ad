"""A model that was exported to a runtime, as a session takes one, and the tokenizer that goes with it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from ..exporters.exported import open_exported
from ..io.files import reading
from ..io.paths import is_exported
from ..storage.resolve import access, weights_path
from ..tasks import Task
from .classes import check_problem
from .model import OpenedModel, check_vocabulary, open_model, short_name, with_padding


def open_any(model: Any, task: Task, *, tokenizer: Any = None, **how: Any) -> OpenedModel:
    """Return a model that can answer the task, in its own runtime if it was exported to one."""
    if not isinstance(model, (str, Path)) or not is_exported(model):
        return open_model(model, task, tokenizer=tokenizer, **how)
    opened: Any = open_exported(model)
    check_problem(task, opened.config)
    tokenizer = tokenizer_of(model, tokenizer or model)
    check_vocabulary(str(model), tokenizer)
    return OpenedModel(short_name(str(model)), opened, with_padding(opened, tokenizer), folder=Path(model))


def tokenizer_of(model: Any, given: Any = None) -> Any:
    """Return the tokenizer that is given, as an object or its place, else that of the model, or None."""
    from transformers import AutoTokenizer

    if given is None and isinstance(model, (str, Path)):
        path = weights_path(str(model))
        if not Path(path).is_dir():  # on the hub, where a model may have none
            with suppress(Exception), access(path):
                return AutoTokenizer.from_pretrained(path)
        given = path if any(Path(path).glob("tokenizer*")) else None
    if not isinstance(given, (str, Path)):
        return given
    with reading(Path(given), "a tokenizer that can be loaded", Exception), access(str(given)):
        return AutoTokenizer.from_pretrained(given)
