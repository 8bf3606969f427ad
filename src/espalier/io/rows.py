"""Rows: one JSON object a line, on disk before the next is begun: a kill costs at most half a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core.errors import EspalierError

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Every whole line. What comes after the last line's end was cut off by a kill, and is not there."""
    return _parsed(path, _whole(path))


def _whole(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise EspalierError(f"cannot read {path}: {error.strerror}") from None
    return raw[: raw.rfind(b"\n") + 1]


def _parsed(path: Path, raw: bytes) -> list[Row]:
    rows = []
    for number, line in enumerate(raw.splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise EspalierError(
                f"line {number} of {path} is damaged: {error}. Delete that line and those after it, and "
                "run the same command again"
            ) from None
        if not isinstance(row, dict):
            raise EspalierError(f"line {number} of {path} is no row: a row is a JSON object")
        rows.append(row)
    return rows


class Rows:
    """A file of rows that is read once and grows; if it is not `ours`, only the rows in memory do."""

    def __init__(self, path: Path, *, ours: bool = True):
        self.path, self.ours = path, ours
        whole = _whole(path)
        self.rows = _parsed(path, whole)
        if ours and path.exists() and path.stat().st_size > len(whole):
            os.truncate(path, len(whole))  # half a line of a killed run would spoil the next one

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def add(self, row: Row) -> None:
        line = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
        if not self.ours:
            self.rows.append(row)
            return
        try:
            with self.path.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise EspalierError(
                f"cannot write to {self.path}: {error.strerror}. The {len(self.rows)} rows before are safe; "
                "make room and run the same command again"
            ) from None
        self.rows.append(row)


@contextmanager
def alone_in(folder: Path, *, file: str | None = ".lock") -> Iterator[None]:
    """Nobody else writes to the folder meanwhile; a killed program leaves no lock behind.

    Without a `file` the folder itself is locked, where the file system can, and nothing is left in it.
    """
    where, how = (folder / file, os.O_RDWR | os.O_CREAT) if file else (folder, os.O_RDONLY)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        import fcntl

        lock = os.open(where, how, 0o666)
    except ImportError:  # Windows: two runs in one folder are the user's business there
        yield
        return
    except OSError as error:
        raise EspalierError(f"cannot write to the folder {folder}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if file or isinstance(error, BlockingIOError):
                raise EspalierError(
                    f"another run is writing to {folder}. Wait for it, or choose another folder with -o"
                ) from None
        yield
    finally:
        os.close(lock)
