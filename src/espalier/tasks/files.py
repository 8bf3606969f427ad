"""Tasks in files: TSV, CSV, JSONL, Parquet or text, gzipped or not; one file, a folder, or parts by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import EspalierError
from .splits import PARTS, part_of
from .tables import Table, from_tables
from .task import Task

FORMATS = ("tsv", "csv", "jsonl", "json", "parquet", "txt", "raw")


def from_files(name: str, **options: Any) -> Task:
    """`data.csv`, `folder`, or `train=a.tsv,validation=b.tsv,test=c.tsv`."""
    paths = _named(name) or _found(Path(name))
    tables: dict[str, Table] = {part: read_table(path) for part, path in paths.items()}
    short = Path(next(iter(paths.values()))).parent.name if len(paths) > 1 else Path(name).name
    return from_tables(short or name, tables, **options)


def split_tables(name: str) -> dict[str, Table]:
    """Every table of a folder under its own name: {"train": …, "validation_matched": …}."""
    folder = Path(name)
    files = [f for f in sorted(folder.iterdir()) if _format(f)] if folder.is_dir() else [folder]
    return {file.name.split(".")[0]: read_table(file) for file in files}


def is_files(name: str) -> bool:
    return Path(name).exists() or bool(_named(name))


def _named(name: str) -> dict[str, Path]:
    """train=a.tsv,test=b.tsv -> {part: path}"""
    pieces = [piece.partition("=") for piece in name.split(",")]
    if not all(equals and part.strip() in PARTS for part, equals, _ in pieces):
        return {}
    return {part.strip(): Path(path.strip()) for part, _, path in pieces}


def _found(path: Path) -> dict[str, Path]:
    if path.is_file():
        return {"train": path}
    files = [f for f in sorted(path.iterdir()) if _format(f) and not f.name.startswith(".")]
    if not files:
        raise EspalierError(f"the folder {path} holds no table. Known endings: {', '.join(FORMATS)}")
    if len(files) == 1:
        return {"train": files[0]}
    parts: dict[str, Path] = {}
    for file in files:
        part = part_of(file.name)
        if part is None or "unlabel" in file.name.lower():
            continue
        if part in parts:
            raise EspalierError(
                f"{path} has two files for {part}: {parts[part].name} and {file.name}. Say which: "
                f"--task {part}={parts[part]},…"
            )
        parts[part] = file
    if not parts:
        raise EspalierError(
            f"no file of {path} is named after a part (train, dev, test): "
            f"{', '.join(f.name for f in files)}. Say which is which: --task train=FILE,test=FILE"
        )
    return parts


def _format(path: Path) -> str | None:
    names = path.name.lower().removesuffix(".gz").rsplit(".", 1)
    return names[1] if len(names) == 2 and names[1] in FORMATS else None


def read_table(path: Path) -> Table:
    """{column: values} of one file, read by pandas."""
    kind = _format(path)
    if kind is None:
        raise EspalierError(f"{path} is no table. Known endings: {', '.join(FORMATS)} (and .gz)")
    try:
        import pandas  # type: ignore[import-untyped]
    except ImportError:
        raise EspalierError("tables need pandas. Type: pip install 'espalier[tasks]'") from None
    try:
        if kind in ("txt", "raw"):
            frame = pandas.DataFrame({"text": _lines(path)})
        elif kind == "parquet":
            frame = pandas.read_parquet(path)
        elif kind in ("jsonl", "json"):
            frame = pandas.read_json(path, lines=kind == "jsonl", dtype=False)
        else:
            # A TSV is never quoted (sentences hold quotes); a CSV may be. Words such as "null" are words.
            frame = pandas.read_csv(
                path,
                sep="\t" if kind == "tsv" else ",",
                quoting=3 if kind == "tsv" else 0,
                keep_default_na=False,
                dtype=str,
            )
    except (OSError, EOFError) as error:
        raise EspalierError(f"cannot read {path}: {error}") from None
    except Exception as error:  # each format has its own ways of being damaged
        raise EspalierError(f"{path} is not a readable {kind} file: {error}") from None
    if frame.empty:
        raise EspalierError(f"{path} has no rows")
    return _columns(frame)


def _columns(frame: Any) -> Mapping[str, list[Any]]:
    return {str(column): frame[column].tolist() for column in frame.columns}


def _lines(path: Path) -> list[str]:
    import gzip

    opened = gzip.open if path.name.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()
