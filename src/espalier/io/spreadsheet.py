"""Spreadsheets: text from outside never becomes a formula, and equal tables make equal files."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import EspalierError

FORMULA = ("=", "+", "-", "@")
STAMP = (1980, 1, 1, 0, 0, 0)  # the first moment a zip file knows


def openpyxl() -> Any:
    try:
        import openpyxl
    except ImportError:
        raise EspalierError("spreadsheets need openpyxl. Type: pip install 'espalier[report]'") from None
    return openpyxl


def read_sheet(path: Path, name: str, want: str) -> list[tuple[Any, ...]]:
    """The values of one sheet, or of the first if none has that name; `want` is for the error."""
    library = openpyxl()
    try:
        raw = io.BytesIO(path.read_bytes())
    except OSError as error:
        raise EspalierError(f"cannot read {path}: {error.strerror}") from None
    try:
        book = library.load_workbook(raw, read_only=True, data_only=True)
        sheet = book[name] if name in book.sheetnames else book.worksheets[0]
        return list(sheet.iter_rows(values_only=True))
    except Exception as error:  # a damaged file fails in many ways inside the reader
        raise EspalierError(
            f"{path} is not an .xlsx workbook ({type(error).__name__}: {error}); expected {want}"
        ) from None


def write_book(path: Path, sheets: Mapping[str, Iterable[Sequence[Any]]]) -> None:
    """Write one sheet for each name; numbers stay numbers, text stays text."""
    library = openpyxl()
    book = library.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for i, row in enumerate(rows, 1):
            for j, value in enumerate(row, 1):
                _put(sheet.cell(i, j), value)
        sheet.freeze_panes = "A2"
    raw = io.BytesIO()
    book.save(raw)
    path.write_bytes(_timeless(raw))


def plain_cell(value: Any) -> Any:
    """For CSV, where only a leading quote keeps a program from reading text as a formula."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = re.sub(r"[\x00-\x1f\x7f]", " ", value)  # a line break inside a cell breaks half the readers
    return "'" + text if text.lstrip().startswith(FORMULA) else text


def _put(cell: Any, value: Any) -> None:
    if not isinstance(value, str):
        cell.value = value
        return
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    cell.value = ILLEGAL_CHARACTERS_RE.sub("", value)
    if value.lstrip().startswith(FORMULA):
        cell.data_type = "s"  # openpyxl makes a formula of what begins with =
        cell.quotePrefix = True  # and a program does, once the cell is edited


def _timeless(raw: io.BytesIO) -> bytes:
    """The same workbook without the time at which it was written."""
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
