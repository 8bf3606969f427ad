"""Tasks in files: TSV, CSV, JSONL, Parquet or text, gzipped or not; one file, a folder, or splits by name."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from ..core.errors import DataError, FolderError, FormatError
from ..io.atomic import reading
from ..io.plugin import import_optional
from .tables import Table, from_tables
from .task import SPLITS, Task, split_of

FORMATS = ("tsv", "csv", "jsonl", "json", "parquet", "txt", "raw")
ENDINGS = ", ".join(FORMATS) + " (and .gz)"


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
    pandas = import_optional("pandas", "tasks", "reading a table")
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
