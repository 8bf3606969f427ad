"""Safetensors files, read and written one tensor at a time, so that none is in memory twice."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from ..core.errors import FolderError, FormatError
from .files import reading, write_file

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
        damage = SafetensorError, LookupError, TypeError, RecursionError
        with reading(self.path, "a complete safetensors file", *damage):
            size = self.path.stat().st_size
            with self.path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if size < 8 or length > min(size - 8, MAX_HEADER):
                    raise ValueError(f"its header should have {length} bytes and the file has {size}")
                with safe_open(self.path, "pt"):  # safetensors checks sizes, overlaps and gaps
                    raw = json.loads(file.read(length), object_pairs_hook=_unique_names)
            self.metadata: dict[str, str] = raw.pop("__metadata__", None) or {}
            self._offsets = {name: value["data_offsets"] for name, value in raw.items()}
            self.entries: dict[str, Entry] = {}
            for name, value in raw.items():
                start, stop = self._offsets[name]
                own = 0 if value["dtype"] in SIZES else stop - start
                self.entries[name] = Entry(name, value["dtype"], tuple(value["shape"]), own)
            self.size, self._start = size, 8 + length

    def bytes(self, name: str) -> Bytes:
        """Return the bytes of an entry, aligned for any dtype.

        They are read and not mapped: a file that is truncated meanwhile would end the program by a signal.
        """
        start, stop = self._offsets[name]
        with reading(self.path, "a complete safetensors file"), self.path.open("rb") as file:
            file.seek(self._start + start)
            data: Bytes = np.empty(stop - start, np.uint8)
            if file.readinto(data.data) < len(data):
                raise ValueError(f"it became shorter while it was read: {name} is not complete")
        return data


def write_entries(
    path: str | Path, metadata: Mapping[str, str], entries: Sequence[Entry], data: Iterable[Bytes]
) -> None:
    """Write a safetensors file atomically; the data of each entry are made when they are written."""
    path = Path(path)
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
        for entry, array in zip(entries, data, strict=True):
            if array.nbytes != entry.size:
                raise FormatError(f"{entry.name} has {array.nbytes} bytes, not {entry.size}", path)
            file.seek(8 + len(text) + starts[entry.name])
            file.write(np.ascontiguousarray(array).data if array.nbytes else b"")
        file.truncate(8 + len(text) + end)
        file.flush()
        os.fsync(file.fileno())


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("its header has the same name twice")
    return table
