"""Sparse files: safetensors whose tensors with many zeros are encoded, each by the smallest encoding.

An encoded tensor `w` becomes the entries `w::values`, `w::mask` and so on; `espalier_sparse` in the file's
metadata describes how. All other tensors are stored unchanged, so any safetensors reader still sees them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import EspalierError, FolderError, FormatError, UnsupportedError
from ..io.files import reading
from ..io.safetensors_file import Bytes, Entry, SafetensorsFile, write_entries
from . import encodings
from .encodings.fields import size as field_bytes
from .encodings.source import DTYPES, NAMES, Source, Spec, words_of
from .int8 import FLOATS, from_int8, is_block_matrix, to_int8

KEY = "espalier_sparse"
VERSION = 1
MARK = "::"
SCALES = "scales"
# A damaged file must not allocate terabytes: beyond FREE bytes a tensor grows at most GROWTH times.
GROWTH, FREE = 4096, 1 << 20
FILE_GROWTH, FILE_FREE = 256, 1 << 26  # and all tensors of a file together so much
SIGNED = (*FLOATS, "float8_e4m3fn", "float8_e5m2")  # dtypes with a −0.0; fnuz and fnu have none
TORCH_NAMES = {code: name for name, code in NAMES.items()}
OVERHEAD = 512  # bytes that an encoded tensor costs in the header; a smaller gain is none


@dataclass(frozen=True)
class Stored:
    """How a file stores one tensor: its encoding and, if rounded to int8, its dtype and output axis."""

    spec: Spec
    was: str = ""
    axis: int = 0

    def entries(self, name: str) -> list[Entry]:
        found = []
        for part, (count, width) in encodings.parts(self.spec).items():
            packed = ("U8", (field_bytes(count, width),))
            dtype, shape = (NAMES[self.spec.dtype], (count,)) if part == "values" else packed
            found.append(Entry(name + MARK + part, dtype, shape))
        if self.was:
            found.append(Entry(name + MARK + SCALES, "F32", (self.spec.shape[self.axis],)))
        return found

    @property
    def dtype(self) -> str:
        """The dtype of the decoded tensor."""
        return self.was or self.spec.dtype

    def to_dict(self) -> dict[str, Any]:
        was = {"was": self.was} if self.was else {}
        return self.spec.to_dict() | was | ({"axis": self.axis} if self.axis else {})


@dataclass(frozen=True)
class StoredTensor:
    """The result for one tensor: its encoding, bytes before and after, and the information bound."""

    name: str
    encoding: str
    before: int
    after: int
    bound: float = 0.0
    negative_zeros: int = 0


def encode_files(
    sources: Sequence[str | Path],
    out: str | Path,
    *,
    int8: bool = False,
    axes: Mapping[str, int] | None = None,
    leave: Callable[[str], bool] | None = None,
    overwrite: bool = False,
) -> list[StoredTensor]:
    """Write the tensors of safetensors files into one, each encoded where that makes it smaller.

    Lossless, unless `int8` stores the matrices of the blocks in eight bits, with a scale for each output:
    each row, or each column of those for which `axes` has 1. Tensors for which `leave` is true stay plain.
    One tensor at a time is read.
    """
    _check_target(sources, Path(out), overwrite)
    jobs, entries, results, metadata = [], [], [], {}
    table: dict[str, Stored] = {}
    decoded = written = 0
    for file in _open_plain(sources):
        metadata.update(file.metadata)
        for name, entry in file.entries.items():
            axis = (axes or {}).get(name, 0) if int8 else None
            stored, bound, negative_zeros = _choose(file, name, axis)
            fits = decoded + entry.size <= FILE_FREE + FILE_GROWTH * written
            if stored is not None and fits and not (leave and leave(name)):
                table[name] = stored
                decoded += entry.size
            jobs.append((file, name, table.get(name)))
            own = table[name].entries(name) if name in table else [entry]
            entries += own
            after = sum(e.size for e in own)
            written += after
            results.append(StoredTensor(name, _label(table, name), entry.size, after, bound, negative_zeros))
    described = {name: stored.to_dict() for name, stored in table.items()}
    metadata[KEY] = json.dumps({"version": VERSION, "tensors": described}, separators=(",", ":"))
    write_entries(out, metadata, entries, (part for job in jobs for part in _encoded(*job)))
    return results


def decode_file(source: str | Path, out: str | Path, *, overwrite: bool = False) -> list[StoredTensor]:
    """Write a sparse file as a plain one, bit for bit what was encoded, except what was rounded to int8."""
    _check_target([source], Path(out), overwrite)
    file = SparseFile(source)
    entries = [file.entry(name) for name in file.names]
    metadata = {key: value for key, value in file.file.metadata.items() if key != KEY}
    write_entries(out, metadata, entries, map(file.decoded_bytes, file.names))
    return [
        StoredTensor(e.name, _label(file.table, e.name), sum(p.size for p in file.parts(e.name)), e.size)
        for e in entries
    ]


def _check_target(sources: Sequence[str | Path], out: Path, overwrite: bool) -> None:
    """Raise if the file to write is one of those that are read, or exists already."""
    for source in sources:
        if out.exists() and Path(source).exists() and out.samefile(source):
            raise FolderError(f"{out} is the file that is read. Choose another name", out)
    if os.path.lexists(out) and not overwrite:
        raise FolderError(f"{out} exists. Choose another name, or replace it with `overwrite`", out)


def _label(table: Mapping[str, Stored], name: str) -> str:
    """Return how results call the way a tensor is stored."""
    if name not in table:
        return "plain"
    return table[name].spec.encoding + (" int8" if table[name].was else "")


def _open_plain(paths: Sequence[str | Path]) -> list[SafetensorsFile]:
    """Open plain files that can become one: no tensor is in two of them."""
    files, owner = [SafetensorsFile(path) for path in paths], dict[str, Path]()
    for file in files:
        if KEY in file.metadata:
            raise FormatError(f"{file.path} is already encoded; decode it first", file.path)
        for name in file.entries:
            if name in owner:
                raise FormatError(f"{name!r} is in {owner[name]} and in {file.path}", file.path)
            owner[name] = file.path
    return files


def _choose(file: SafetensorsFile, name: str, axis: int | None) -> tuple[Stored | None, float, int]:
    """Return (how to store it, or None for plain; bound; number of −0.0); int8 only if axis is given."""
    entry = file.entries[name]
    tensor = _tensor(file, name)
    if tensor is None:
        return None, entry.size, 0
    was, rounded = TORCH_NAMES[entry.dtype], None
    if axis is not None and is_block_matrix(name, was, entry.shape):
        rounded = to_int8(tensor, axis)
    source = Source(tensor if rounded is None else rounded[0])
    spec = encodings.best_spec(source, minimum=max(0, -(-(entry.size - FREE) // GROWTH)))
    stored = Stored(spec) if rounded is None else Stored(spec, was, axis or 0)
    size = sum(e.size for e in stored.entries(name))
    bound = source.bound + (4 * entry.shape[stored.axis] if stored.was else 0)
    negative_zeros = source.negative_zeros if was in SIGNED and rounded is None else 0
    return (stored if size + OVERHEAD < entry.size else None), bound, negative_zeros


def _encoded(file: SafetensorsFile, name: str, stored: Stored | None) -> list[Bytes]:
    tensor = _tensor(file, name)
    if stored is None or tensor is None:
        return [file.bytes(name)]
    rounded = to_int8(tensor, stored.axis) if stored.was else None
    encoded = encodings.encode(tensor if rounded is None else rounded[0], stored.spec)
    made = [words_of(part) for part in encoded.parts.values()]
    return made if rounded is None else [*made, words_of(rounded[1])]


def _tensor(file: SafetensorsFile, name: str) -> Tensor | None:
    """Return a tensor of the file, or None if its dtype cannot be encoded."""
    entry = file.entries[name]
    dtype = DTYPES.get(TORCH_NAMES.get(entry.dtype, ""))
    if dtype is None or not entry.size:
        return None if dtype is None else torch.empty(entry.shape, dtype=dtype)
    return torch.from_numpy(file.bytes(name)).view(dtype).reshape(entry.shape)


class SparseFile:
    """A sparse file whose description was checked; tensors are decoded one by one."""

    def __init__(self, path: str | Path):
        self.file = SafetensorsFile(path)
        self.table = read_table(self.file)
        parts = {part.name for name in self.table for part in self.parts(name)}
        self.names = sorted({*self.file.entries, *self.table} - parts)

    def parts(self, name: str) -> list[Entry]:
        """Return the entries of the file that hold a tensor."""
        return self.table[name].entries(name) if name in self.table else [self.file.entries[name]]

    def entry(self, name: str) -> Entry:
        """Return the entry that a plain file would have."""
        stored = self.table.get(name)
        return Entry(name, NAMES[stored.dtype], stored.spec.shape) if stored else self.file.entries[name]

    def tensor(self, name: str) -> Tensor:
        """Return one tensor, decoded."""
        found = {entry.name.rpartition(MARK)[2]: _tensor(self.file, entry.name) for entry in self.parts(name)}
        parts = {part: tensor for part, tensor in found.items() if tensor is not None}
        if len(parts) < len(found):
            dtype = self.file.entries[name].dtype
            raise UnsupportedError(f"{name} has dtype {dtype}, which is stored but cannot be read here")
        return restore(name, self.table[name], parts) if name in self.table else parts.popitem()[1]

    def decoded_bytes(self, name: str) -> Bytes:
        """Return the bytes that a plain file would have, of any dtype."""
        return words_of(self.tensor(name)) if name in self.table else self.file.bytes(name)


def restore(name: str, stored: Stored, parts: Mapping[str, Tensor]) -> Tensor:
    """Return the tensor from its parts."""
    encoded = {part: data for part, data in parts.items() if part != SCALES or not stored.was}
    try:
        tensor = encodings.decode(encodings.Encoded(stored.spec, encoded))
    except EspalierError as error:
        raise FormatError(f"{name} is damaged: {error}") from None
    if stored.was:
        tensor = from_int8(tensor, parts[SCALES], DTYPES[stored.was], stored.axis)
    return tensor


def read_table(file: SafetensorsFile) -> dict[str, Stored]:
    """Return how each encoded tensor is stored; every part is in the file, with the right dtype and size."""
    if KEY not in file.metadata:
        raise FormatError(f"{file.path} is a plain safetensors file; nothing in it is encoded", file.path)
    with reading(file.path, f"described by {KEY} in its metadata", LookupError, TypeError, RecursionError):
        raw = json.loads(file.metadata[KEY])
        if raw["version"] != VERSION:
            raise ValueError(f"it has version {raw['version']!r}; version {VERSION} can be read")
        table: dict[str, Stored] = {}
        taken: set[str] = set()
        for name, one in dict(raw["tensors"]).items():
            try:
                table[name] = _read_stored(one)
                _check_entries(name, table[name], file.entries, taken)
            except EspalierError as error:
                raise FormatError(f"{name} is damaged: {error}") from None
        decoded = sum(s.spec.n * DTYPES[s.dtype].itemsize for s in table.values())
        if decoded > FILE_FREE + FILE_GROWTH * file.size:
            raise ValueError(f"its {file.size} bytes would become {decoded}, more than weights ever do")
    return table


def _read_stored(raw: Any) -> Stored:
    raw = dict(raw) if isinstance(raw, dict) else {}
    was, axis = raw.pop("was", ""), raw.pop("axis", 0)
    spec = encodings.read(raw)
    if spec.dtype not in NAMES:
        raise FormatError(f"{spec.dtype} is not encoded in files")
    if was and (was not in FLOATS or spec.dtype != "int8" or len(spec.shape) != 2):
        raise FormatError(f"a {spec.dtype} of {len(spec.shape)} axes cannot have been {was!r}")
    if type(axis) is not int or axis not in ((0, 1) if was else (0,)):
        raise FormatError(f"its scales are along axis 0 or 1, not {axis!r}"[:200])
    return Stored(spec, was, axis)


def _check_entries(name: str, stored: Stored, entries: Mapping[str, Entry], taken: set[str]) -> None:
    if name in entries:
        raise FormatError("it is in the file twice, plain and encoded")
    expected = stored.entries(name)
    for entry in expected:
        if entries.get(entry.name) != entry:
            raise FormatError(f"the file should have {entry} and has {entries.get(entry.name)}")
        if entry.name in taken:
            raise FormatError(f"{entry.name} is also a part of another tensor")
        taken.add(entry.name)
    size, decoded = sum(entry.size for entry in expected), stored.spec.n * DTYPES[stored.dtype].itemsize
    if decoded > FREE + GROWTH * size:
        raise FormatError(f"its {size} bytes would become a tensor of {decoded}")
