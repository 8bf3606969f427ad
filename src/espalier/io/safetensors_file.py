"""Safetensors files, read and written one tensor at a time, so that none is in memory twice."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import FolderError, FormatError
from .atomic import write_file

MAX_HEADER = 100_000_000  # bytes, as in safetensors itself
SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1}
SIZES |= {"F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2}
SIZES |= {"I32": 4, "U32": 4, "F32": 4, "C64": 8, "I64": 8, "U64": 8, "F64": 8}

Bytes = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Entry:
    """One entry of a safetensors file; `length` is its bytes if the dtype is not in SIZES (F4, F6)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    length: int = 0

    @property
    def size(self) -> int:
        return prod(self.shape) * SIZES[self.dtype] if self.dtype in SIZES else self.length


class SafetensorsFile:
    """A safetensors file whose header was checked: every entry lies in the file, without overlaps."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        with _translate_errors(self.path):
            start = self._check()
            with self.path.open("rb") as file:
                file.seek(8)
                raw = json.loads(file.read(start - 8), object_pairs_hook=_unique_names)
            self.metadata: dict[str, str] = raw.pop("__metadata__", None) or {}
            self._offsets = {name: value["data_offsets"] for name, value in raw.items()}
            self.entries = {name: self._entry(name, value) for name, value in raw.items()}
            self._data = np.memmap(self.path, np.uint8, "c")[start:]

    def _check(self) -> int:
        """Check the header and return where the data begin."""
        from safetensors import safe_open

        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER):
            raise ValueError(f"its header should have {length} bytes and the file has {size}")
        with safe_open(self.path, "pt"):  # safetensors checks sizes, overlaps and gaps
            pass
        return 8 + length

    def _entry(self, name: str, raw: dict[str, Any]) -> Entry:
        start, stop = self._offsets[name]
        length = 0 if raw["dtype"] in SIZES else stop - start
        return Entry(name, raw["dtype"], tuple(raw["shape"]), length)

    def bytes(self, name: str) -> Bytes:
        """Return the bytes of an entry, aligned for any dtype."""
        start, stop = self._offsets[name]
        data: Bytes = np.asarray(self._data[start:stop])
        return data if data.ctypes.data % 8 == 0 else data.copy()


@dataclass(frozen=True)
class Item:
    """Entries whose data are made together, when they are written."""

    entries: Sequence[Entry]
    make: Callable[[], Iterable[Bytes]]


def write_items(path: str | Path, metadata: dict[str, str], items: Sequence[Item]) -> None:
    """Write a safetensors file whose sizes are all known beforehand, atomically."""
    path = Path(path)
    entries = [entry for item in items for entry in item.entries]
    (name, count), *_ = Counter(entry.name for entry in entries).most_common(1) or [("", 1)]
    if count > 1:
        raise FormatError(f"two entries would be called {name!r}", path)
    if path.is_dir() or not path.resolve().parent.is_dir():
        wrong = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise FolderError(f"cannot write {path}: {wrong}", path)
    if path.exists() and path.suffix != ".safetensors":
        raise FolderError(f"{path} exists, is not a .safetensors file and is not replaced", path)
    header: dict[str, Any] = {"__metadata__": metadata}
    starts, end = {}, 0
    # So each begins at a multiple of its own size; F4 and F6, which need none, come last.
    for entry in sorted(entries, key=lambda e: -SIZES.get(e.dtype, 0)):
        starts[entry.name], end = end, end + entry.size
        offsets = [starts[entry.name], end]
        header[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise FormatError(f"{len(entries)} entries are more than a safetensors header holds", path)
    with write_file(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for item in items:
            for entry, data in zip(item.entries, item.make(), strict=True):
                if data.nbytes != entry.size:
                    raise FormatError(f"{entry.name} has {data.nbytes} bytes, not {entry.size}", path)
                file.seek(8 + len(text) + starts[entry.name])
                file.write(np.ascontiguousarray(data).data if data.nbytes else b"")
        file.truncate(8 + len(text) + end)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        raise FolderError(f"cannot read {path}: {error.strerror or error}", path) from None
    except (SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise FormatError(f"{path} is damaged or not a safetensors file: {error}", path) from None


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("its header has the same name twice")
    return table
