"""The two published file formats: one curve of a method as CSV, trials of random removal as XLSX."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ...io.files import reading, write_bytes
from ...io.spreadsheet import read_sheet, write_book

HEADER = ["Pruned_Heads", "Accuracy"]
FIRST, TRIAL = "Heads Pruned", "Trial_{}"
CURVE = f"a CSV file with the header {','.join(HEADER)} and a row of two numbers for each level"
TRIALS = f"a workbook whose sheet has the columns {FIRST}, {TRIAL.format(1)}, … and a row for each level"


@dataclass(frozen=True)
class Accuracies:
    """Accuracies at numbers of pruned heads, of one trial or several: [trials][levels]."""

    heads: tuple[int, ...]
    trials: tuple[tuple[float, ...], ...]


def write_curve(path: Path, found: Accuracies) -> None:
    """Write one curve."""
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\r\n")
    lines.writerow(HEADER)
    lines.writerows(zip(found.heads, map(repr, found.trials[0])))
    write_bytes(path, text.getvalue().encode())


def write_trials(path: Path, found: Accuracies) -> None:
    """Write the trials of random removal."""
    header = [FIRST, *(TRIAL.format(i + 1) for i in range(len(found.trials)))]
    write_book(path, {"Sheet1": [header, *zip(found.heads, *found.trials)]})


def read_curve(path: Path) -> Accuracies:
    """Read one curve."""
    with reading(path, CURVE, csv.Error):
        rows = [row for row in csv.reader(path.read_text("utf-8-sig").splitlines()) if any(row)]
        if len(rows) < 2 or [cell.strip() for cell in rows[0]] != HEADER:
            raise ValueError(f"it begins with {','.join(rows[0])!r}" if rows else "it is empty")
        if any(len(row) != 2 for row in rows):
            raise ValueError("it has rows that are not two cells")
        return _accuracies(rows[1:], 0, [1])


def read_trials(files: Mapping[Path, str]) -> Accuracies | None:
    """Read and join the trials of {file: group}; a file of groups already joined replaces them."""
    joined = [path for path, group in files.items() if group.startswith("concat")]
    heads: tuple[int, ...] | None = None
    trials: list[tuple[float, ...]] = []
    for path in joined[:1] or sorted(files):
        rows = [row for row in read_sheet(path, "Sheet1", TRIALS) if any(c is not None for c in row)]
        header = [str(cell or "") for cell in rows[0]] if rows else []
        columns = [i for i, name in enumerate(header) if re.fullmatch(r"Trial_\d+", name)]
        with reading(path, TRIALS):
            if len(rows) < 2 or FIRST not in header or not columns:
                raise ValueError(f"it begins with {', '.join(header[:4])!r}" if rows else "it is empty")
            found = _accuracies(rows[1:], header.index(FIRST), columns)
            if heads not in (None, found.heads):
                raise ValueError(f"it has other levels than {min(files).name}")
        heads = found.heads
        trials += found.trials
    return None if heads is None else Accuracies(heads, tuple(trials))


def _accuracies(rows: Sequence[Sequence[object]], first: int, columns: Sequence[int]) -> Accuracies:
    heads = [_number(row[first]) for row in rows]
    values = [[_number(row[i]) for row in rows] for i in columns]
    for number, row in enumerate(rows, 2):
        head, own = heads[number - 2], [trial[number - 2] for trial in values]
        if not head.is_integer() or not all(0 <= value <= 1 for value in own):
            raise ValueError(f"row {number} is {row!r}, not a whole number and accuracies from 0 to 1")
    if heads[0] != 0 or any(a >= b for a, b in pairwise(heads)):
        raise ValueError(f"its levels do not rise from 0: {', '.join(f'{head:g}' for head in heads[:5])} …")
    return Accuracies(tuple(map(int, heads)), tuple(map(tuple, values)))


def _number(cell: object) -> float:
    """Return the number in a cell; NaN, which fails every check, if it holds none."""
    try:
        number = float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan
    return number if math.isfinite(number) else math.nan
