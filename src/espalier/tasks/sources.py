"""What a task may be given as: a name, a file, a folder, a dataset of the hub or in memory, a Task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import DataError, EspalierError, FormatError, InvalidValueError, UnknownNameError
from ..io import plugin
from .catalogue import named_tasks
from .files import from_files, is_files
from .hub import from_datasets, load_splits
from .task import SPLITS, Examples, Task

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

FORMS = {
    "FILE or FOLDER": "TSV, CSV, JSONL, Parquet or text, .gz or not; train, dev, test by their names",
    "train=FILE,test=FILE": "splits in files of any name",
    "OWNER/NAME[:CONFIG]": "a dataset of the hub",
    "FILE.py": "a Python file that defines task(seed)",
}


def names() -> list[str]:
    """List the named tasks."""
    return list(named_tasks())


def descriptions() -> dict[str, str]:
    """Describe the named tasks and the other forms in which a task can be given."""
    return {name: task.about for name, task in named_tasks().items()} | FORMS


def load(
    task: str | Path | Task | Dataset | DatasetDict,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    seed: int = 0,
) -> Task:
    """Return a task. Columns are recognised unless given; missing splits are made by a seeded draw."""
    options = {"text": text, "pair": pair, "label": label, "seed": seed}
    if isinstance(task, Task):
        return _check(task, task.name)
    if not isinstance(task, str | Path):
        splits = task if isinstance(task, Mapping) else {"train": task}  # a DatasetDict or a Dataset
        if splits and all(hasattr(each, "column_names") for each in splits.values()):
            known = next(iter(splits.values())).info.dataset_name
            return from_datasets(known or "dataset", splits, **options)
        raise InvalidValueError(
            f"a task is a name, a file, a DatasetDict, a Dataset or a Task, not {type(task).__name__}", "task"
        )
    name = str(task)
    named = named_tasks()
    if name in named:
        return named[name].load(**options)
    if name.endswith(".py"):
        return _from_python(name, seed)
    if is_files(name):
        return from_files(name, **options)
    try:
        datasets = load_splits(name)
    except DataError as error:
        more = f"There is no such file or folder, and {error}."
        raise UnknownNameError("task", name, named, "task", more) from None
    return from_datasets(name, datasets, **options)


def _from_python(file: str, seed: int) -> Task:
    found = getattr(plugin.load(file), "task", None)
    try:
        return _check(found(seed) if callable(found) else found, file)
    except EspalierError as error:
        raise FormatError(str(error), file) from None
    except Exception as error:
        raise FormatError(f"task(seed) of {file} fails: {type(error).__name__}: {error}", file) from error


def _check(task: object, where: str) -> Task:
    splits = [getattr(task, split, None) for split in SPLITS]
    if not isinstance(task, Task) or not all(isinstance(split, Examples) for split in splits):
        raise DataError(
            f"{where} is no Task(name, train, validation, test) of Examples(texts, pairs, labels); a Python "
            "file defines task(seed), which returns one"
        )
    return task
