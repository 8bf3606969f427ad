"""Rows: one JSON object per line, each on disk before the next begins; a kill costs at most one line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core.errors import FolderError
from ..core.strict_json import parse_json
from .files import check_link, reading, sync
from .paths import LOCK

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Return the rows of all complete lines; a missing file has none."""
    return _read(path)[0]


def _read(path: Path) -> tuple[list[Row], int]:
    """Return the rows of all complete lines, and how many bytes they take."""
    check_link(path)
    with reading(path, "a file of rows"):
        raw = path.read_bytes() if path.exists() else b""
        complete = raw[: raw.rfind(b"\n") + 1]
        rows: list[Row] = []
        for line in complete.splitlines():
            try:
                row = parse_json(line)
                if not isinstance(row, dict):
                    raise ValueError(f"a row is a JSON object, not a {type(row).__name__}")
            except ValueError as error:
                advice = "Delete that line and all after it, and resume"
                raise ValueError(f"line {len(rows) + 1} is damaged ({error}). {advice}") from None
            rows.append(row)
    return rows, len(complete)


class Rows:
    """A file of rows that is read once and appended to; with `write` False only the rows in memory grow."""

    def __init__(self, path: Path, *, write: bool = True):
        self.path, self.write = path, write
        self.rows, complete = _read(path)
        if write and path.exists() and path.stat().st_size > complete:
            os.truncate(path, complete)  # the incomplete line of a killed run would join the next one

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def add(self, row: Row) -> None:
        """Append a row and wait until it is on disk."""
        line = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
        try:
            if self.write:
                new = not self.path.exists()
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
                with os.fdopen(os.open(self.path, flags, 0o666), "ab") as file:
                    file.write(line.encode())
                    file.flush()
                    os.fsync(file.fileno())
                if new:
                    sync(self.path.parent)
        except OSError as error:
            saved = f"The {len(self.rows)} rows before are safe; make room and resume"
            raise FolderError(f"cannot write to {self.path}: {error.strerror}. {saved}", self.path) from None
        self.rows.append(row)


@contextmanager
def exclusive(folder: Path, *, file: str | None = LOCK) -> Iterator[None]:
    """Hold a lock on the folder; raise if another process has it. A killed process leaves no lock.

    With `file` None the folder itself is locked, where the file system can, and no file is left in it.
    """
    path, flags = (folder / file, os.O_RDWR | os.O_CREAT) if file else (folder, os.O_RDONLY)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        import fcntl

        lock = os.open(path, flags, 0o666)
    except ImportError:  # Windows has no fcntl: two runs in one folder are not detected there
        yield
        return
    except OSError as error:
        raise FolderError(f"cannot write to the folder {folder}: {error.strerror}", folder) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if file or isinstance(error, BlockingIOError):
                message = f"another process is writing to {folder}. Wait for it, or choose another folder"
                raise FolderError(message, folder) from None
        yield
    finally:
        os.close(lock)
