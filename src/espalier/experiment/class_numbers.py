"""The classes of a task in the numbering of a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.errors import DataError
from ..core.log import log
from ..tasks import Examples, Task


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
