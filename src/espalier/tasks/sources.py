"""What a task may be given as: a name, a file, a folder, a dataset of the hub or in memory, a Task.

Files are TSV, CSV, JSONL, Parquet or text, gzipped or not; one file, a folder, or splits by name.
"""

from __future__ import annotations

import gzip
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
from ..io.files import reading
from . import catalogue
from .hub import from_datasets, load_splits
from .tables import Table, from_tables
from .task import SPLITS, Examples, Task, split_of

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

FORMATS = ("tsv", "csv", "jsonl", "json", "parquet", "txt", "raw")
ENDINGS = ", ".join(FORMATS) + " (and .gz)"
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


def from_files(name: str, **options: Any) -> Task:
    """Return the task in `data.csv`, in `folder`, or in `train=a.tsv,validation=b.tsv,test=c.tsv`."""
    paths = _named(name) or _found(Path(name))
    tables = {split: read_table(path) for split, path in paths.items()}
    short = next(iter(paths.values())).parent.name if len(paths) > 1 else Path(name).name
    return from_tables(short or name, tables, **options)


def read_tables(name: str) -> dict[str, Table]:
    """Return every table of a folder under its own name: {"train": …, "validation_matched": …}."""
    folder = Path(name)
    files = [f for f in sorted(folder.iterdir()) if _format(f)] if folder.is_dir() else [folder]
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
    files = [f for f in sorted(path.iterdir()) if _format(f) and not f.name.startswith(".")]
    if len(files) == 1:
        return {"train": files[0]}
    splits: dict[str, Path] = {}
    for file in files:
        split = split_of(file.name)
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


def _format(path: Path) -> str | None:
    names = path.name.lower().removesuffix(".gz").rsplit(".", 1)
    return names[1] if len(names) == 2 and names[1] in FORMATS else None


def read_table(path: Path) -> Table:
    """Return {column: values} of one file."""
    kind = _format(path)
    if kind is None:
        raise FormatError(f"{path} is not a table. Known endings: {ENDINGS}", path)
    pandas = plugin.import_optional("pandas", "tasks", "reading a table")
    with reading(path, f"a readable {kind} file", Exception):  # each format has its own ways of being damaged
        if kind in ("txt", "raw"):
            opened = gzip.open if path.name.endswith(".gz") else open
            with opened(path, "rt", encoding="utf-8") as file:
                frame = pandas.DataFrame({"text": file.read().splitlines()})
        elif kind == "parquet":
            frame = pandas.read_parquet(path)
        elif kind in ("jsonl", "json"):
            frame = pandas.read_json(path, lines=kind == "jsonl", dtype=False)
        else:
            # A TSV is never quoted (sentences hold quotes); a CSV may be. Words such as "null" are words.
            separator, quoting = ("\t", 3) if kind == "tsv" else (",", 0)
            frame = pandas.read_csv(path, sep=separator, quoting=quoting, keep_default_na=False, dtype=str)
    if frame.empty:
        raise DataError(f"{path} has no rows")
    return {str(column): frame[column].tolist() for column in frame.columns}
