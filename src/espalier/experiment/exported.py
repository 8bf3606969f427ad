"""A model that was exported to a runtime, as a session takes one: it predicts, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..exporters.exported import is_exported, open_exported
from ..tasks import Task
from .classes import check_problem
from .model import OpenedModel, open_model, short_name
from .tokenizer import check_vocabulary, with_padding


def open_any(model: Any, task: Task, *, tokenizer: Any = None, **how: Any) -> OpenedModel:
    """Return a model that can answer the task, in its own runtime if it was exported to one."""
    from transformers import AutoTokenizer

    if not isinstance(model, (str, Path)) or not is_exported(model):
        return open_model(model, task, tokenizer=tokenizer, **how)
    opened: Any = open_exported(model)
    check_problem(task, opened.config)
    tokenizer = tokenizer or AutoTokenizer.from_pretrained(model)
    check_vocabulary(str(model), tokenizer)
    return OpenedModel(short_name(str(model)), opened, with_padding(opened, tokenizer), folder=Path(model))
