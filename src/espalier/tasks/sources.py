"""What a task may be given as: a name, a file, a folder, a dataset of the hub or in memory, a Task.

Files are TSV, CSV, JSONL, Parquet or text, gzipped or not; one file, a folder, or splits by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from ..core.errors import (
    DataError,
    EspalierError,
    FolderError,
    FormatError,
    InvalidValueError,
    UnknownNameError,
)
from ..io import plugin
from ..io.paths import named_path
from . import catalogue
from .formats import ENDINGS, RUNNING, format_of, read_table
from .hub import from_datasets, load_splits
from .tables import Table, from_tables
from .task import SPLITS, Examples, Task, split_of

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

FORMS = {
    "FILE or FOLDER": "TSV, CSV, JSONL, Parquet or text, .gz or not; train, dev, test by their names",
    "train=FILE,test=FILE": "splits in files of any name",
    "OWNER/NAME[:CONFIG]": "a dataset of the hub",
    "FILE.py": "a Python file that defines task(seed)",
}


def named_tasks() -> dict[str, catalogue.NamedTask]:
    """Return the tasks of all files in catalogue/, by name."""
    found = [import_module(f"{catalogue.__name__}.{info.name}") for info in iter_modules(catalogue.__path__)]
    return {name: task for module in found for name, task in module.TASKS.items()}


def names() -> list[str]:
    """List the named tasks."""
    return list(named_tasks())


def descriptions() -> dict[str, str]:
    """Describe the named tasks and the other forms in which a task can be given."""
    return {name: task.about for name, task in named_tasks().items()} | FORMS


def name_of(task: object) -> str:
    """Return how a task is called that a user gave, to show it before it is read."""
    return str(task) if isinstance(task, (str, Path)) else str(getattr(task, "name", type(task).__name__))


def load(
    task: str | Path | Task | Dataset | DatasetDict,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    kind: str | None = None,
    running: bool = False,
    texts_suffice: bool = False,
    seed: int = 0,
) -> Task:
    """Return a task. Columns are recognised unless given; missing splits are made by a seeded draw.

    `kind` is classification, regression, similarity or language, if it shall not follow from the labels. A
    table without labels is an error, unless `running` says that it is running text, as text files are. A
    training split without any is left out, unless its `texts_suffice`.
    """
    options: dict[str, Any] = {"text": text, "pair": pair, "label": label, "seed": seed}
    options |= {"kind": kind, "running": running, "texts_suffice": texts_suffice}
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
    path = Path(name) if _named(name) else named_path(name, "task")
    named = named_tasks()
    if name in named and not _has_splits(path):
        return named[name].load(**options)
    if name.endswith(".py"):
        return _from_python(name, seed)
    if is_files(name):
        return from_files(name, **options)
    if format_of(path) or path.is_absolute():
        raise FolderError(f"there is no file {name}", path)
    try:
        datasets = load_splits(name)
    except DataError as error:
        more = f"There is no such file or folder; {error}."
        raise UnknownNameError("task", name, named, "task", more) from None
    return from_datasets(name, datasets, **options)


def _has_splits(folder: Path) -> bool:
    """Whether a folder holds tables that are named after splits: it comes before a task of that name."""
    return folder.is_dir() and any(format_of(file) and split_of(file.name) for file in folder.iterdir())


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


def from_files(name: str, **options: Any) -> Task:
    """Return the task in `data.csv`, in `folder`, or in `train=a.tsv,validation=b.tsv,test=c.tsv`."""
    paths = _named(name) or _found(Path(name))
    options["running"] |= all(format_of(path) in RUNNING for path in paths.values())
    tables = {split: read_table(path) for split, path in paths.items()}
    short = next(iter(paths.values())).parent.name if len(paths) > 1 else Path(name).name
    return from_tables(short or name, tables, **options)


def read_tables(name: str) -> dict[str, Table]:
    """Return every table of a folder under its own name: {"train": …, "validation_matched": …}."""
    folder = Path(name)
    files = [f for f in sorted(folder.iterdir()) if format_of(f)] if folder.is_dir() else [folder]
    return {file.name.split(".")[0]: read_table(file) for file in files}


def is_files(name: str) -> bool:
    """Whether a name is that of a file, a folder, or of splits in files."""
    return Path(name).exists() or bool(_named(name))


def _named(name: str) -> dict[str, Path]:
    """Parse `train=a.tsv,test=b.tsv` into {split: path}; {} if it is anything else."""
    pieces = [piece.partition("=") for piece in name.split(",")]
    if not all(equals and split.strip() in SPLITS for split, equals, _ in pieces):
        return {}
    return {split.strip(): Path(path.strip()) for split, _, path in pieces}


def _found(path: Path) -> dict[str, Path]:
    if path.is_file():
        return {"train": path}
    if not path.is_dir():
        raise FolderError(f"{path} is neither a file nor a folder", path)
    files = [f for f in sorted(path.iterdir()) if format_of(f) and not f.name.startswith(".")]
    if len(files) == 1:
        return {"train": files[0]}
    splits: dict[str, Path] = {}
    for file in files:
        # wiki.train.tokens is train, as train.tsv is
        split = next(filter(None, map(split_of, file.name.split(".")[:-1])), None)
        if split is None or "unlabel" in file.name.lower():
            continue
        if split in splits:
            two = f"{splits[split].name} and {file.name}"
            raise FolderError(f"{path} has two files for {split}: {two}. Name one: {split}=FILE,…", path)
        splits[split] = file
    if not splits:
        listed = ", ".join(file.name for file in files) or f"none that ends in {ENDINGS}"
        message = f"no table in {path} is named after a split (train, dev, test); it has: {listed}"
        raise FolderError(f"{message}. Name the files of the task: train=FILE,test=FILE", path)
    return splits
