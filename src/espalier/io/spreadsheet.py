"""Spreadsheets. Text never becomes a formula, and equal tables make equal files."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import FormatError
from .files import reading, write_bytes
from .plugin import import_optional

FORMULA = ("=", "+", "-", "@")
NEEDED = ("report", "reading or writing a spreadsheet")
FREE, RATIO = 2**26, 200  # bytes that any workbook may hold, and beyond that so many times its size
FREE_CELLS = 10_000  # beyond these, one for every byte
STAMP = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip file can hold


def read_sheet(path: Path, name: str, expected: str) -> list[tuple[Any, ...]]:
    """Return the values of one sheet, or of the first if none has that name; `expected` is its content."""
    library = import_optional("openpyxl", *NEEDED)
    with reading(path, expected or "a workbook", Exception):  # a damaged file fails in many ways
        raw = io.BytesIO(path.read_bytes())
        with zipfile.ZipFile(raw) as archive:
            size = sum(member.file_size for member in archive.infolist())
        _check_size(path, size, FREE + RATIO * path.stat().st_size, "bytes")
        book = library.load_workbook(raw, read_only=True, data_only=True)
        sheet = book[name] if name in book.sheetnames else book.worksheets[0]
        rows, cells = [], 0
        for row in sheet.iter_rows(values_only=True):  # a cell far away makes empty ones up to it
            cells += max(1, len(row))
            _check_size(path, cells, FREE_CELLS + size, "cells")
            rows.append(row)
        return rows


def _check_size(path: Path, found: int, most: int, what: str) -> None:
    if found > most:
        raise FormatError(f"{path} would become more than {most:,} {what}: it is damaged", path)


def write_book(path: Path, sheets: Mapping[str, Iterable[Sequence[Any]]]) -> None:
    """Write one sheet per name; numbers stay numbers, text stays text."""
    book = import_optional("openpyxl", *NEEDED).Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for i, row in enumerate(rows, 1):
            for j, value in enumerate(row, 1):
                _put(sheet.cell(i, j), value)
        sheet.freeze_panes = "A2"
    raw = io.BytesIO()
    book.save(raw)
    write_bytes(path, _without_times(raw))


def plain_cell(value: Any) -> Any:
    """Return the value for a CSV file, where a leading quote keeps text from becoming a formula."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = re.sub(r"[\x00-\x1f\x7f]", " ", value)  # many readers fail on a line break inside a cell
    return "'" + text if text.lstrip().startswith(FORMULA) else text


def _put(cell: Any, value: Any) -> None:
    if not isinstance(value, str):
        cell.value = value
        return
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    cell.value = ILLEGAL_CHARACTERS_RE.sub("", value)
    if value.lstrip().startswith(FORMULA):
        cell.data_type = "s"  # openpyxl makes a formula of text that begins with =
        cell.quotePrefix = True  # other programs do so when the cell is edited


def _without_times(raw: io.BytesIO) -> bytes:
    """Return the workbook with all times of writing set to one constant."""
    out = io.BytesIO()
    with zipfile.ZipFile(raw) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "docProps/core.xml":
                data = re.sub(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", b"1980-01-01T00:00:00Z", data)
            info = zipfile.ZipInfo(name, STAMP)
            info.compress_type = zipfile.ZIP_DEFLATED
            new.writestr(info, data)
    return out.getvalue()
