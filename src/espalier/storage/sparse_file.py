"""Sparse files: safetensors whose tensors with many zeros are encoded, each by what makes it smallest.

A tensor `w` that is encoded becomes the entries `w::values`, `w::mask` and so on; the file's metadata say
under `espalier_sparse` how. All other tensors stay as they were, so any safetensors reader still sees them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import EspalierError
from ..io.safetensors_file import Bytes, Entry, Item, SafeFile, write_items
from . import encodings
from .encodings.about import DTYPES, NAMES, About, Facts, words_of
from .encodings.fields import size as field_bytes
from .int8 import FLOATS, from_int8, is_block_matrix, to_int8

KEY = "espalier_sparse"
VERSION = 1
MARK = "::"
SCALES = "scales"
# A few bytes must not ask for a terabyte: beyond the first megabyte a tensor grows at most so many times.
GROWTH, FREE = 4096, 1 << 20
SIGNED = (*FLOATS, "float8_e4m3fn", "float8_e5m2")  # they have a −0.0; fnuz and fnu do not
Leave = Callable[[str], bool] | None
WORTH = 512  # bytes that an encoded tensor costs in the header; less is not gained


@dataclass(frozen=True)
class Stored:
    """How one tensor lies in the file: its encoding, and if it was made int8 its own dtype and its axis."""

    about: About
    was: str = ""
    axis: int = 0

    def entries(self, name: str) -> list[Entry]:
        found = []
        for part, (count, wide) in encodings.parts(self.about).items():
            if part == "values":
                found.append(Entry(name + MARK + part, NAMES[self.about.dtype], (count,)))
            else:
                size = field_bytes(count, wide)
                found.append(Entry(name + MARK + part, "U8", (size,)))
        if self.was:
            found.append(Entry(name + MARK + SCALES, "F32", (self.about.shape[self.axis],)))
        return found

    @property
    def called(self) -> str:
        return self.about.encoding + (" int8" if self.was else "")

    @property
    def decoded(self) -> int:
        return self.about.n * DTYPES[self.was or self.about.dtype].itemsize

    def to_dict(self) -> dict[str, Any]:
        was = {"was": self.was} if self.was else {}
        return self.about.to_dict() | was | ({"axis": self.axis} if self.axis else {})


@dataclass(frozen=True)
class Count:
    """What became of one tensor: bytes before, after, and, where it was encoded, the least possible."""

    name: str
    encoding: str
    before: int
    after: int
    bound: float = 0.0
    minus_zeros: int = 0


# ------------------------------------------------------------------------------------------ writing


def encode_files(
    sources: Sequence[str | Path],
    out: str | Path,
    *,
    int8: bool = False,
    axes: Mapping[str, int] | None = None,
    leave: Leave = None,
) -> list[Count]:
    """Write the tensors of some safetensors files into one, each encoded where that makes it smaller.

    Lossless, unless `int8` stores the matrices of the blocks in eight bits, with a scale for each output:
    each row, or each column of those for which `axes` says 1. `leave` says which tensors stay plain.
    One tensor at a time is read.
    """
    items, counts, table, metadata = [], [], {}, {}
    for file in _sources(sources):
        metadata.update(file.metadata)
        for name in file.entries:
            stored, bound, minus = _choose(file, name, (axes or {}).get(name, 0) if int8 else None)
            stored = None if leave is not None and leave(name) else stored
            if stored is None:
                items.append(Item([file.entries[name]], partial(_plain, file, name)))
            else:
                table[name] = stored.to_dict()
                items.append(Item(stored.entries(name), partial(_encoded, file, name, stored)))
            after = sum(entry.size for entry in items[-1].entries)
            called = "plain" if stored is None else stored.called
            counts.append(Count(name, called, file.entries[name].size, after, bound, minus))
    metadata[KEY] = json.dumps({"version": VERSION, "tensors": table}, separators=(",", ":"))
    write_items(out, metadata, items)
    return counts


def decode_file(source: str | Path, out: str | Path) -> list[Count]:
    """Write a sparse file as a plain one: bit for bit what it was made of, but for what was made int8."""
    file = SparseFile(source)
    items, counts = [], []
    for name in file.names:
        entry = file.entry(name)
        items.append(Item([entry], partial(_decoded, file, name)))
        stored = file.table.get(name)
        before = sum(e.size for e in stored.entries(name)) if stored else entry.size
        called = "plain" if stored is None else stored.called
        counts.append(Count(name, called, before, entry.size))
    write_items(out, {k: v for k, v in file.file.metadata.items() if k != KEY}, items)
    return counts


def _sources(paths: Sequence[str | Path]) -> list[SafeFile]:
    """Plain files that can become one: no tensor is in two of them."""
    files, home = [SafeFile(path) for path in paths], dict[str, Path]()
    for file in files:
        if KEY in file.metadata:
            raise EspalierError(f"{file.path} is encoded already. Type: espalier decode {file.path} -o PLAIN")
        for name in file.entries:
            if name in home:
                raise EspalierError(
                    f"{name!r} is in {home[name]} and in {file.path}; one file holds it once. "
                    "Encode them into a file each"
                )
            home[name] = file.path
    return files


def _choose(file: SafeFile, name: str, axis: int | None) -> tuple[Stored | None, float, int]:
    """How to store it, or None for plain; int8 only with an axis for its scales."""
    entry = file.entries[name]
    tensor = _tensor(file, name)
    if tensor is None:
        return None, entry.size, 0
    was = _torch_name(entry.dtype)
    small = None
    if axis is not None and is_block_matrix(name, was, entry.shape):
        small = to_int8(tensor, axis)
    facts = Facts(tensor if small is None else small[0])
    least = max(0, -(-(entry.size - FREE) // GROWTH))
    about = encodings.best_for(facts, encodings.ENCODINGS, least)
    stored = Stored(about) if small is None else Stored(about, was, axis or 0)
    size = sum(e.size for e in stored.entries(name))
    bound = facts.bound + (4 * entry.shape[stored.axis] if stored.was else 0)
    minus = facts.minus_zeros if was in SIGNED and small is None else 0
    return (stored if size + WORTH < entry.size else None), bound, minus


def _encoded(file: SafeFile, name: str, stored: Stored) -> list[Bytes]:
    tensor = _tensor(file, name)
    assert tensor is not None
    small = to_int8(tensor, stored.axis) if stored.was else None
    encoded = encodings.encode(tensor if small is None else small[0], stored.about)
    made = [words_of(part) for part in encoded.parts.values()]
    return made if small is None else [*made, words_of(small[1])]


def _plain(file: SafeFile, name: str) -> list[Bytes]:
    return [file.bytes(name)]


def _decoded(file: SparseFile, name: str) -> list[Bytes]:
    return [words_of(file.tensor(name))] if name in file.table else [file.file.bytes(name)]


def _torch_name(dtype: str) -> str:
    return next((name for name, code in NAMES.items() if code == dtype), "")


def _tensor(file: SafeFile, name: str) -> Tensor | None:
    """The tensor in the file's own memory map, or None if its dtype is not one that is encoded."""
    entry = file.entries[name]
    kind = DTYPES.get(_torch_name(entry.dtype))
    if kind is None:
        return None
    return torch.from_numpy(file.bytes(name)).view(kind).reshape(entry.shape)


# ------------------------------------------------------------------------------------------ reading


class SparseFile:
    """A sparse file, checked before anything in it is believed; tensors are decoded one by one."""

    def __init__(self, path: str | Path):
        self.file = SafeFile(path)
        self.table = read_table(self.file)
        hidden = {e.name for name, stored in self.table.items() for e in stored.entries(name)}
        plain = [name for name in self.file.entries if name not in hidden]
        self.names = sorted([*plain, *self.table])

    def entry(self, name: str) -> Entry:
        """The entry that a plain file would have."""
        if name not in self.table:
            return self.file.entries[name]
        stored = self.table[name]
        return Entry(name, NAMES[stored.was or stored.about.dtype], stored.about.shape)

    def tensor(self, name: str) -> Tensor:
        if name not in self.table:
            found = _tensor(self.file, name)
            if found is None:
                raise EspalierError(
                    f"{name} has dtype {self.file.entries[name].dtype}, which is kept but not read here; "
                    "safetensors may know it"
                )
            return found.clone()
        stored = self.table[name]
        parts = {}
        for entry in stored.entries(name):
            part = _tensor(self.file, entry.name)
            assert part is not None
            parts[entry.name.rpartition(MARK)[2]] = part
        return restore(name, stored, parts)


def restore(name: str, stored: Stored, parts: Mapping[str, Tensor]) -> Tensor:
    """The tensor from its parts."""
    rest = {part: data for part, data in parts.items() if part != SCALES or not stored.was}
    try:
        tensor = encodings.decode(encodings.Encoded(stored.about, rest))
    except EspalierError as error:
        raise EspalierError(f"{name} is damaged: {error}") from None
    if stored.was:
        tensor = from_int8(tensor, parts[SCALES], DTYPES[stored.was], stored.axis)
    return tensor


def read_table(file: SafeFile) -> dict[str, Stored]:
    """How each encoded tensor is stored: every part is there, of the right dtype and size."""
    if KEY not in file.metadata:
        raise EspalierError(f"{file.path} is a plain safetensors file; nothing in it is encoded")
    try:
        raw = json.loads(file.metadata[KEY])
        version, tensors = raw["version"], dict(raw["tensors"])
    except (ValueError, LookupError, TypeError, RecursionError):
        raise EspalierError(f"{file.path} is damaged: see {KEY} in its metadata") from None
    if version != VERSION:
        raise EspalierError(f"{file.path} has version {version!r}; this espalier reads {VERSION}")
    table: dict[str, Stored] = {}
    taken: set[str] = set()
    for name, one in tensors.items():
        try:
            table[name] = _read_stored(one)
            _check_entries(name, table[name], file.entries, taken)
        except EspalierError as error:
            raise EspalierError(f"{file.path}: {name} is damaged: {error}") from None
    return table


def _read_stored(raw: Any) -> Stored:
    raw = dict(raw) if isinstance(raw, dict) else {}
    was, axis = raw.pop("was", ""), raw.pop("axis", 0)
    about = encodings.read(raw)
    if about.dtype not in NAMES:
        raise EspalierError(f"{about.dtype} is not encoded in files")
    if was and (was not in FLOATS or about.dtype != "int8" or len(about.shape) != 2):
        raise EspalierError(f"a {about.dtype} of {len(about.shape)} axes cannot have been {was!r}")
    if type(axis) is not int or axis not in ((0, 1) if was else (0,)):
        raise EspalierError(f"its scales lie along axis 0 or 1, not {axis!r}"[:200])
    return Stored(about, was, axis)


def _check_entries(name: str, stored: Stored, there: Mapping[str, Entry], taken: set[str]) -> None:
    if name in there:
        raise EspalierError("it is in the file twice, plain and encoded")
    expected, size = stored.entries(name), 0
    for entry in expected:
        found = there.get(entry.name)
        if found is None:
            raise EspalierError(f"the file has no {entry.name}")
        if found != entry:
            raise EspalierError(
                f"{entry.name} should be {entry.dtype} {list(entry.shape)} and is "
                f"{found.dtype} {list(found.shape)}"
            )
        if entry.name in taken:
            raise EspalierError(f"{entry.name} belongs to another tensor as well")
        taken.add(entry.name)
        size += entry.size
    if stored.decoded > FREE + GROWTH * size:
        raise EspalierError(f"{size} bytes claim to be a tensor of {stored.decoded}")
