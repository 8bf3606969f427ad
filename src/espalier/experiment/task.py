"""The task of an experiment: opened, and what to do where it has no labels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from .. import tasks
from ..core.errors import DataError
from ..core.terminal import log
from ..tasks import Task
from .model import is_language_model

if TYPE_CHECKING:
    from .session import AnyModel, AnyTask, Session, SessionOptions

COLUMNS = ("text", "pair", "label", "kind")
MEASURED = ("validation", "test")


def open_task(task: AnyTask, options: SessionOptions, model: AnyModel) -> Task:
    """Return the task, and log how it was made; for a language model, text without labels is one."""
    named: Any = {key: options.get(key) for key in COLUMNS}
    code = options.get("trust_remote_code", False)
    running = not isinstance(task, Task) and is_language_model(model, trust_remote_code=code)
    found = tasks.load(task, seed=options.get("split_seed", 0), running=running, **named)
    for note in found.notes:
        log.info("%s: %s", found.name, note)
    return found


def check_labels(task: Task) -> None:
    """Raise if there is nothing to measure by."""
    missing = [split for split in MEASURED if getattr(task, split).labels is None]
    if missing and task.kind != "language":
        raise DataError(
            f"the {' and '.join(missing)} examples of {task.name} have no labels, so that nothing can be "
            "measured by them. A classifier can be pruned to a budget without any: espalier.prune with "
            "`macs`, `speedup`…"
        )


def label_by_model(session: Session) -> Session:
    """Take what the model predicts of validation and test examples for the truth."""
    count = int(getattr(session.model.config, "num_labels", 0))
    if session.task.kind != "classification" or count < 2:
        raise DataError(
            f"{session.task.name} has no labels, and {session.name} predicts no classes that could stand in"
        )
    log.warning(
        "%s has no labels: accuracy is agreement with what %s predicts", session.task.name, session.name
    )
    splits = {}
    for split in MEASURED:
        batches = session.batches(split)
        for batch in batches:
            batch["labels"] = torch.zeros(len(batch["input_ids"]), dtype=torch.long)
        values = session.predict(session.model, split).values
        for batch, positions in zip(batches, batches.positions):
            batch["labels"] = torch.as_tensor(values[list(positions)]).long()
        splits[split] = replace(getattr(session.task, split), labels=tuple(values.tolist()))
    note = f"no labels: accuracy is agreement with {session.name}"
    task = replace(session.task, classes=tuple(map(str, range(count))), notes=(*session.task.notes, note))
    return replace(session, task=replace(task, **splits), unlabelled=True)
