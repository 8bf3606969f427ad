"""The task of an experiment: opened, its classes as a model numbers them, and what if it has no labels."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .. import tasks
from ..core.call import COLUMNS, SET
from ..core.errors import DataError, UnknownNameError, UnsupportedError
from ..core.terminal import log
from ..evaluation import metrics
from ..tasks import Examples, Task

if TYPE_CHECKING:
    from .session import AnyTask, Session, SessionOptions

CHOSEN = (*COLUMNS, *SET)  # of a task, by keywords
MEASURED = ("validation", "test")
MOST_CLASSES = 20  # of more, some numbering always fits by chance
CHANCE = 1e-3  # how probable a better fit may be if both numberings are equally good
PROBLEMS = {"classification": "single_label_classification", "regression": "regression"}


def check_problem(task: Task, config: Any) -> None:
    """Raise if the model's head answers another kind of question than the task asks."""
    problem = getattr(config, "problem_type", None)
    wanted = PROBLEMS.get(task.kind, problem)
    if problem is not None and problem != wanted:
        several = "one text can have several labels; " if problem.startswith("multi") else ""
        raise UnsupportedError(
            f"the model was trained for {problem} (problem_type in its config), and {task.name} is a task of "
            f"{task.kind}: {several}its predictions would be read wrongly. Train a model for the task first "
            "with espalier.train"
        )


def in_model_numbering(task: Task, model: Any) -> Task:
    """Return the task in the model's own numbering of the classes: by their names, else by their numbers."""
    count = model.config.num_labels
    if task.kind == "regression" and count != 1:
        raise DataError(
            f"the task's labels are numbers, but the model predicts {count} classes. Train a model for it "
            "first with espalier.train"
        )
    if task.kind != "classification":
        return task
    if len(task.classes) > count:
        raise DataError(
            f"the task has {len(task.classes)} classes, but the model predicts {count}. Train a model for it "
            "first with espalier.train"
        )
    named = _by_name(task.classes, model.config)
    if len(task.classes) < count and named is None:
        log.warning(
            "the task has %d classes (%s), and the model predicts %d: was it trained for this task?",
            *(len(task.classes), ", ".join(task.classes), count),
        )
    order = named or _by_number(task.classes, count)
    if order is None:
        log.warning(
            "the task's classes are %s; the model's are %s. If the order differs, give them the same names",
            ", ".join(f"{i} {name}" for i, name in enumerate(task.classes)),
            ", ".join(f"{i} {name}" for i, name in enumerate(_names(model.config))),
        )
        return task
    if order == list(range(count)) and all(map(_is_whole, task.classes)):
        return task
    train, validation, test = (_renumber(x, order) for x in (task.train, task.validation, task.test))
    classes = tuple(name.lower() for name in _names(model.config))
    return replace(task, classes=classes, train=train, validation=validation, test=test)


def _by_name(classes: Sequence[str], config: Any) -> list[int] | None:
    """Return the model's number of each class if it knows their names, in whatever case."""
    theirs = _names(config)
    for spelled in (str, str.lower):
        numbers = {spelled(name): i for i, name in enumerate(theirs)}
        ours = [spelled(name) for name in classes]
        if len(numbers) == len(theirs) and len(set(ours)) == len(ours) and set(ours) <= set(numbers):
            return [numbers[name] for name in ours]
    return None


def _by_number(classes: Sequence[str], count: int) -> list[int] | None:
    """Return the model's number of each class if they are whole numbers; None if they are not."""
    if not all(map(_is_whole, classes)):
        return None
    numbers = [int(name) for name in classes]
    for first in (0, 1):  # stars are counted from 1
        if all(first <= number < count + first for number in numbers):
            return [number - first for number in numbers]
    if len(numbers) == count:
        return list(range(count))
    raise DataError(
        f"the labels are {', '.join(classes[:20])}, and the model predicts {count} classes: which label is "
        "which class cannot be told. Number the labels as the model does, from 0"
    )


def _names(config: Any) -> list[str]:
    """Return the names of the model's classes in their order."""
    numbers = {int(i): str(name) for name, i in (config.label2id or {}).items()}
    return [numbers.get(i, f"LABEL_{i}") for i in range(config.num_labels)]


def _is_whole(name: str) -> bool:
    return re.fullmatch(r"-?\d+", name, re.ASCII) is not None


def _renumber(examples: Examples, order: Sequence[int]) -> Examples:
    if examples.labels is None:
        return examples
    return replace(examples, labels=tuple(order[int(label)] for label in examples.labels))


def check_numbering(task: Task, model: Any, truth: np.ndarray | None, predictions: np.ndarray) -> None:
    """Warn if classes are predicted as each other; raise if their numbers were guessed from their order."""
    swaps = find_swaps(truth, predictions) if task.kind == "classification" and truth is not None else {}
    if not swaps:
        return
    theirs = _names(model.config)
    ours = dict(enumerate(task.classes))
    seen = ", ".join(f"{ours.get(a, a)!r} as {theirs[b]!r}" for a, b in sorted(swaps.items()))
    if _by_name(task.classes, model.config) is None and not all(map(_is_whole, task.classes)):
        raise DataError(
            f"the model predicts {seen}: the task's classes ({', '.join(task.classes)}) were numbered in the "
            f"order of their names, which is not the model's. Name the labels in the data as the model does "
            f"({', '.join(theirs)}), or number them as it does, from 0"
        )
    log.warning("the model predicts %s, nearly always: are the labels of %s swapped?", seen, task.name)


def find_swaps(truth: np.ndarray, predictions: np.ndarray) -> dict[int, int]:
    """Return {class: the class predicted for it} of classes that are predicted as each other, else {}.

    The best one-to-one renumbering counts only if most examples of the classes that it moves are right under
    it, and if it is right so much more often than the given one that chance does not explain it.
    """
    from scipy.optimize import linear_sum_assignment  # it is there: metrics of classes need scikit-learn

    truth, predictions = np.asarray(truth).astype(int), np.asarray(predictions).astype(int)
    classes = int(max(truth.max(initial=0), predictions.max(initial=0))) + 1
    if classes > MOST_CLASSES or min(truth.min(initial=0), predictions.min(initial=0)) < 0:
        return {}
    table = np.zeros((classes, classes), dtype=int)  # [class, predicted class]
    np.add.at(table, (truth, predictions), 1)
    # among equals the given numbering: a class without examples is not moved
    matched = linear_sum_assignment(-table - 0.5 * np.eye(classes))
    moved = {int(a): int(b) for a, b in zip(*matched) if a != b}
    wins = sum(int(table[a, b]) for a, b in moved.items())
    losses = sum(int(table[a, a]) for a in moved)
    examples = sum(int(table[a].sum()) for a in moved)
    decided = wins + losses
    chance = sum(math.comb(decided, i) for i in range(losses + 1)) / 2**decided
    return moved if 2 * wins > examples and chance < CHANCE else {}


def open_task(task: AnyTask, options: SessionOptions, running: bool, texts_suffice: bool = False) -> Task:
    """Return the task, and log how it was made; where text may be `running`, one without labels is a task.

    Where `texts_suffice`, training examples need no labels.
    """
    named: Any = {key: options.get(key) for key in (*COLUMNS, "kind")}
    named |= {"running": running, "texts_suffice": texts_suffice}
    found = tasks.load(task, seed=options.get("split_seed", 0), **named)
    if metric := options.get("metric"):
        if metric not in (known := metrics.for_kind(found.kind)):
            raise UnknownNameError(f"metric of {found.kind}", metric, known, "metric")
        found = replace(found, metric=metric)
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
