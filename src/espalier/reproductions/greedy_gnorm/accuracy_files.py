"""One published file each: a strategy's curve as CSV, the trials of random removal as XLSX."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...analysis.curves import Curve, Trials
from ...core.errors import EspalierError
from ...io.spreadsheet import read_sheet, write_book

HEADER = ["Pruned_Heads", "Accuracy"]
FIRST, TRIAL = "Heads Pruned", "Trial_{}"


def write_curve(path: Path, curve: Curve) -> None:
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\r\n")
    lines.writerow(HEADER)
    lines.writerows(zip(curve.removed, map(repr, curve.accuracy)))
    path.write_bytes(text.getvalue().encode())


def write_trials(path: Path, trials: Trials) -> None:
    header = [FIRST, *(TRIAL.format(i + 1) for i in range(len(trials.accuracy)))]
    write_book(path, {"Sheet1": [header, *zip(trials.removed, *trials.accuracy)]})


def read_curve(path: Path) -> Curve:
    want = f"a CSV file with the header {','.join(HEADER)} and a row of two numbers for each level"
    try:
        rows = [row for row in csv.reader(path.read_text("utf-8-sig").splitlines()) if any(row)]
    except OSError as error:
        raise EspalierError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, csv.Error) as error:
        raise EspalierError(f"{path} is not text ({error}); expected {want}") from None
    if len(rows) < 2:
        raise EspalierError(f"{path} is empty; expected {want}")
    if [cell.strip() for cell in rows[0]] != HEADER:
        raise EspalierError(f"{path} begins with {','.join(rows[0])!r}; expected {want}")
    levels, values = [], []
    for number, row in enumerate(rows[1:], 2):
        if len(row) != 2:
            raise EspalierError(f"{path}, row {number} has {len(row)} cells; expected {want}")
        levels.append(_level(path, number, row[0]))
        values.append(_accuracy(path, number, row[1]))
    try:
        return Curve(tuple(levels), tuple(values))
    except EspalierError as error:
        raise EspalierError(f"{path}: {error}") from None


def read_trials(files: Mapping[Path, str]) -> dict[str, Trials]:
    """The trials of all groups joined; a file of groups already joined stands for them."""
    joined = [path for path, group in files.items() if group.startswith("concat")]
    levels: tuple[int, ...] | None = None
    trials: list[tuple[float, ...]] = []
    for path in joined[:1] or sorted(files):
        want = f"a sheet with the columns {FIRST}, {TRIAL.format(1)}, … and a row for each level"
        rows = [row for row in read_sheet(path, "Sheet1", want) if any(c is not None for c in row)]
        if len(rows) < 2:
            raise EspalierError(f"{path} is empty; expected {want}")
        header = [str(cell or "") for cell in rows[0]]
        columns = [i for i, name in enumerate(header) if re.fullmatch(r"Trial_\d+", name)]
        if FIRST not in header or not columns:
            raise EspalierError(f"{path} has the columns {', '.join(header[:4])!r}; expected {want}")
        first = header.index(FIRST)
        own = tuple(_level(path, n, row[first]) for n, row in enumerate(rows[1:], 2))
        if levels is not None and own != levels:
            raise EspalierError(f"{path} has other levels than {min(files)}: they cannot be joined")
        levels = own
        for i in columns:
            trials.append(tuple(_accuracy(path, n, row[i]) for n, row in enumerate(rows[1:], 2)))
        try:
            Trials(levels, tuple(trials))
        except EspalierError as error:
            raise EspalierError(f"{path}: {error}") from None
    return {f"random:{len(trials)}": Trials(levels, tuple(trials))} if levels else {}


def _level(path: Path, row: int, cell: Any) -> int:
    number = _number(cell)
    if number is None or number != int(number) or number < 0:
        raise EspalierError(f"{path}, row {row}: {cell!r} is not a number of pruned heads")
    return int(number)


def _accuracy(path: Path, row: int, cell: Any) -> float:
    number = _number(cell)
    if number is None or not 0 <= number <= 1:
        raise EspalierError(f"{path}, row {row}: {cell!r} is not an accuracy from 0 to 1")
    return number


def _number(cell: Any) -> float | None:
    try:
        number = float(cell)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
