"""Safetensors files read and written one tensor at a time, so that none is in memory twice."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import EspalierError
from .leftovers import beside, tell

LONGEST = 100_000_000  # bytes of a header, as in safetensors itself
SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1}
SIZES |= {"F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2}
SIZES |= {"I32": 4, "U32": 4, "F32": 4, "C64": 8, "I64": 8, "U64": 8, "F64": 8}

Bytes = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Entry:
    """One entry of a safetensors file; `told` are its bytes if its dtype is not known here."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    told: int = 0

    @property
    def size(self) -> int:
        return prod(self.shape) * SIZES[self.dtype] if self.dtype in SIZES else self.told


class SafeFile:
    """A safetensors file whose header has been checked: every entry lies in the file, and only once."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        with _reading(self.path):
            self._check()
            with self.path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                raw = json.loads(file.read(length), object_pairs_hook=_no_twins)
            self.metadata: dict[str, str] = raw.pop("__metadata__", None) or {}
            self.entries = {k: _entry(k, v) for k, v in raw.items()}
            self._where = {k: v["data_offsets"] for k, v in raw.items()}
            self._data = np.memmap(self.path, np.uint8, "c")[8 + length :]

    def _check(self) -> None:
        from safetensors import safe_open

        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LONGEST):
            raise ValueError(f"its header says {length} bytes and the file has {size}")
        with safe_open(self.path, "pt"):  # sizes, overlaps and gaps: safetensors looks at all of them
            pass

    def bytes(self, name: str) -> Bytes:
        start, stop = self._where[name]
        data: Bytes = np.asarray(self._data[start:stop])
        return data if data.ctypes.data % 8 == 0 else data.copy()


@dataclass(frozen=True)
class Item:
    """Entries that are made together, when their turn comes."""

    entries: Sequence[Entry]
    make: Callable[[], Iterable[Bytes]]


def write_items(out: str | Path, metadata: dict[str, str], items: Sequence[Item]) -> None:
    """Write a file whose sizes are all known beforehand; it takes its place when it is whole."""
    entries = [entry for item in items for entry in item.entries]
    names = [entry.name for entry in entries]
    if twins := {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ():
        raise EspalierError(f"two entries would be called {min(twins)!r}")
    if not Path(out).resolve().parent.is_dir():
        raise EspalierError(f"cannot write {out}: there is no folder {Path(out).parent}")
    header: dict[str, Any] = {"__metadata__": metadata}
    starts, end = {}, 0
    # So each begins at a multiple of its own size; F4 and F6, which need none, come last.
    for entry in sorted(entries, key=lambda e: -SIZES.get(e.dtype, 0)):
        starts[entry.name] = end
        end += entry.size
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [starts[entry.name], end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST:
        raise EspalierError(f"{len(entries)} entries are more than a safetensors header holds")
    with replacing(Path(out)) as place, place.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for item in items:
            for entry, data in zip(item.entries, item.make(), strict=True):
                if data.nbytes != entry.size:
                    raise EspalierError(f"{entry.name} has {data.nbytes} bytes, not {entry.size}")
                file.seek(8 + len(text) + starts[entry.name])
                file.write(np.ascontiguousarray(data).data if data.nbytes else b"")
        file.truncate(8 + len(text) + end)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A file beside the target that takes its place at the end; a failure leaves what was there."""
    if out.is_dir():
        raise EspalierError(f"{out} is a folder; give the name of a file")
    if out.exists() and out.suffix != ".safetensors":
        raise EspalierError(f"{out} exists and is no .safetensors; it will not be replaced")
    tell(out)
    place = beside(out)
    try:
        yield place
        os.replace(place, out)
    except OSError as error:
        raise EspalierError(
            f"cannot write {out}: {error.strerror or error}. What stood there before is untouched"
        ) from error
    finally:
        place.unlink(missing_ok=True)


def _entry(name: str, raw: dict[str, Any]) -> Entry:
    """A dtype that safetensors knows and we do not (F4, F6) is as long as it says: that was compared."""
    start, stop = raw["data_offsets"]
    told = 0 if raw["dtype"] in SIZES else stop - start
    return Entry(name, raw["dtype"], tuple(raw["shape"]), told)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        inside = sorted(Path(path).glob("*.safetensors")) if Path(path).is_dir() else []
        hint = f". It is a folder; give the file in it: {inside[0]}" if inside else ""
        raise EspalierError(f"cannot read {path}: {error.strerror or error}{hint}") from None
    except (SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise EspalierError(f"{path} is no safetensors file, or it is damaged: {error}") from None


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("its header has the same name twice")
    return table
