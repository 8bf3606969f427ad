"""Tables in files of every format, refused where a row or a size is wrong rather than read in part."""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core.errors import DataError, FormatError
from ..io.files import open_text, reading
from ..io.plugin import import_optional
from .lines import count_lines
from .tables import Table

FREE = 2**26  # bytes that any file may become in memory
RATIO = 200  # beyond that, so many times its size: text is packed twenty times smaller at best


def format_of(path: Path) -> str | None:
    """Return the format that the name of a file ends in; None if it is none of them."""
    names = path.name.lower().rsplit(".", 2)
    if names[-1] == "gz" and len(names) == 3 and names[1] != "parquet":
        return names[1] if names[1] in FORMATS else None
    return names[-1] if len(names) > 1 and names[-1] in FORMATS else None


def read_table(path: Path) -> Table:
    """Return {column: values} of one file; running text stays in its file."""
    kind = format_of(path)
    if kind is None:
        raise FormatError(f"{path} is not a table. Known endings: {ENDINGS}", path)
    damage = (EOFError, zlib.error, RecursionError, csv.Error)
    with reading(path, f"a readable {kind} file", *damage):
        table = FORMATS[kind](path)
    if not table or not all(map(len, table.values())):
        raise DataError(f"{path} has no rows")
    return table


def _read_text(path: Path) -> Table:
    return {"text": count_lines(path)}


def _read_tsv(path: Path) -> Table:
    """Read fields between tabs. Quotes are letters: sentences hold them."""
    with _lines(path) as lines:
        rows = ((i, line.rstrip("\r\n").split("\t")) for i, line in enumerate(lines, 1) if line.strip("\r\n"))
        return _columns(path, rows)


def _read_csv(path: Path) -> Table:
    """Read fields between commas, quoted or not."""
    before = csv.field_size_limit(_most(path))  # one text may be longer than the usual limit
    try:
        with _lines(path) as lines:
            reader = csv.reader(lines, strict=True)
            return _columns(path, ((reader.line_num, row) for row in reader if row))
    finally:
        csv.field_size_limit(before)


def _columns(path: Path, rows: Iterable[tuple[int, Sequence[str]]]) -> Table:
    """Return columns of rows, each with the number of its line; the first row is the header."""
    numbered = iter(rows)
    _, first = next(numbered, (0, ()))
    if not first:
        raise FormatError(f"{path} is empty; its first row names the columns", path)
    header = [name or f"Unnamed: {i}" for i, name in enumerate(first)]
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise FormatError(f"{path} has two columns named {twice!r}; rename one", path)
    values: list[list[str]] = [[] for _ in header]
    for line, row in numbered:
        if len(row) != len(header):
            raise FormatError(
                f"{path}, line {line} has {len(row)} fields, its header {len(header)} ({', '.join(header)}). "
                "A text that holds the separator must be quoted (CSV), or the separator replaced",
                path,
            )
        for column, value in zip(values, row):
            column.append(value)
    return dict(zip(header, values))


def _read_jsonl(path: Path) -> Table:
    with _lines(path) as lines:
        return _from_objects(path, (json.loads(line) for line in lines if line.strip()))


def _read_json(path: Path) -> Table:
    """Read a list of objects, or an object of columns."""
    with _lines(path) as lines:
        found = json.loads("".join(lines))
    if isinstance(found, list):
        return _from_objects(path, found)
    columns = list(found.values()) if isinstance(found, dict) else []
    columns = [list(one.values()) if isinstance(one, dict) else one for one in columns]
    if not columns or not all(isinstance(one, list) and len(one) == len(columns[0]) for one in columns):
        raise ValueError("it holds neither a list of objects nor columns of one length")
    return dict(zip(map(str, found), columns))


def _from_objects(path: Path, objects: Iterable[Any]) -> Table:
    """Return columns of objects; None where one has no such key."""
    rows = []
    for number, one in enumerate(objects, 1):
        if not isinstance(one, dict):
            raise FormatError(f"{path}: row {number} is no JSON object but {str(one)[:40]!r}", path)
        rows.append(one)
    names = dict.fromkeys(name for row in rows for name in row)
    if len(names) * len(rows) > _most(path):
        raise _bomb(path)
    return {name: [row.get(name) for row in rows] for name in names}


def _read_parquet(path: Path) -> Table:
    """Read a Parquet file in small steps: a few bytes of it can stand for any number of rows."""
    library = import_optional("pyarrow.parquet", "tasks", "reading a Parquet file")
    errors = import_optional("pyarrow", "tasks", "reading a Parquet file").ArrowException
    with reading(path, "a readable parquet file", errors), library.ParquetFile(path) as file:
        if file.metadata.num_rows * file.metadata.num_columns > _most(path):
            raise _bomb(path)
        names = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]
        values: dict[str, list[Any]] = {name: [] for name in names}
        size = 0
        for batch in file.iter_batches(batch_size=1024, columns=names):
            size += batch.nbytes
            if size > _most(path):
                raise _bomb(path)
            for name, column in batch.to_pydict().items():
                values[name] += column
        return values


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[str]]:
    """Give the lines of a file with their ends; raise where a packed file grows without end."""
    most = _most(path)

    def bounded() -> Iterator[str]:
        size = 0
        while line := file.readline(most + 1):
            size += len(line)
            if size > most:
                raise _bomb(path)
            yield line

    with open_text(path, newline="") as file:
        yield bounded()


def _most(path: Path) -> int:
    return FREE + RATIO * path.stat().st_size


def _bomb(path: Path) -> FormatError:
    size = path.stat().st_size
    return FormatError(
        f"{path} is a file of {size:,} bytes that would become more than {_most(path):,}. If it is meant, "
        "unpack it or divide it into several files",
        path,
    )


FORMATS: dict[str, Callable[[Path], Table]] = {
    "tsv": _read_tsv,
    "csv": _read_csv,
    "jsonl": _read_jsonl,
    "json": _read_json,
    "parquet": _read_parquet,
    "txt": _read_text,
    "raw": _read_text,
    "tokens": _read_text,
}
RUNNING = ("txt", "raw", "tokens")  # formats of running text, without columns
ENDINGS = ", ".join(FORMATS) + " (and .gz)"
