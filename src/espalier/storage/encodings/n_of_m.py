"""nm: of every m neighbours exactly n are stored, with their places.

Neighbours are along the last axis (`across` 0) or, as in a transposed weight, along the first (`across` 1).
The last group of a row may be short; a group with fewer values than N also stores zeros, from the left.
Where the whole group is shorter than N, the places are 0, 1, …, N − 1 and exceed the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ...core.errors import FormatError
from .encoding import Encoding, Fields
from .fields import Array, Packed, pack, width
from .source import Source, Spec, transpose

PATTERNS = ((2, 4), (1, 2), (1, 4), (4, 8), (2, 8))


class NOfM(Encoding):
    """bits = groups·N·(n + ⌈log2 M⌉)"""

    name, needs, parts = "nm", ("n", "m", "across"), ("values", "places")

    def fields(self, spec: Spec) -> Fields:
        n, m, across = spec["n"], spec["m"], spec["across"]
        if not 1 <= n <= m <= 256 or across > 1:
            raise FormatError(f"{n}:{m} (across {across}) is not a valid N:M pattern")
        rows, columns = _matrix(spec.shape, spec.n, across)
        stored = rows * -(-columns // m) * n
        return {"values": (stored, spec.value_bits), "places": (stored, width(m))}

    def options(self, source: Source) -> Iterator[Spec]:
        for n, m in PATTERNS:
            if source.nnz * m <= source.n * n + source.n:  # short groups may hold a few more
                for across in (0, 1) if len(source.shape) > 1 else (0,):
                    yield source.spec(self.name, n=n, m=m, across=across)

    def fits(self, source: Source, spec: Spec) -> bool:
        groups = _groups(source.words, source.shape, spec["m"], spec["across"])
        return int(_count(groups != 0).max(initial=0)) <= spec["n"]

    def encode(self, source: Source, spec: Spec) -> dict[str, Array]:
        n, m = spec["n"], spec["m"]
        groups = _groups(source.words, source.shape, m, spec["across"])
        taken = groups != 0
        spare = n - _count(taken)
        if len(spare) and spare.min() < 0:
            raise FormatError(f"the tensor is not {n}:{m}: a group has {n - spare.min()} values")
        for j in range(m):  # zeros from the left, until every group has its n
            more = ~taken[:, j] & (spare > 0)
            taken[:, j] |= more
            spare -= more
        places = np.flatnonzero(taken)
        return {"values": groups.reshape(-1)[places], "places": pack(places % m, width(m))}

    def decode(self, spec: Spec, values: Array, parts: Mapping[str, Packed]) -> Array:
        n, m, across = spec["n"], spec["m"], spec["across"]
        rows, columns = _matrix(spec.shape, spec.n, across)
        places = parts["places"][:].reshape(-1, n)
        if (places >= m).any() or not (places[:, 1:] > places[:, :-1]).all():
            raise FormatError(f"the places in a group of {m} do not increase")
        _check_ends(places, values, rows, (columns - 1) % m + 1)
        places += m * np.arange(len(places))[:, None]
        padded = -(-columns // m) * m
        out = np.zeros(rows * padded, values.dtype)
        out[places.reshape(-1)] = values
        table = out.reshape(rows, padded)[:, :columns]
        return (transpose(table) if across else np.ascontiguousarray(table)).reshape(-1)


def _check_ends(places: Array, values: Array, rows: int, room: int) -> None:
    """Raise if the last group of a row, which has `room` elements, has a value beyond them."""
    n = places.shape[1]
    last = places.reshape(rows, -1, n)[:, -1]
    beyond = last >= room
    if (beyond & ((values.reshape(rows, -1, n)[:, -1] != 0) | (last != np.arange(n)))).any():
        raise FormatError(f"a place points beyond its row, whose last group has {room} elements")


def _matrix(shape: tuple[int, ...], n: int, across: int) -> tuple[int, int]:
    along = (shape[0] if across else shape[-1]) if shape else 1
    return n // along if along else 0, along


def _groups(words: Array, shape: tuple[int, ...], m: int, across: int) -> Array:
    """Return [groups, m], short groups padded with zeros."""
    rows, columns = _matrix(shape, len(words), across)
    table = transpose(words.reshape(columns, rows)) if across else words.reshape(rows, columns)
    if columns % m:
        table = np.pad(table, ((0, 0), (0, -columns % m)))
    return np.ascontiguousarray(table).reshape(-1, m)


def _count(taken: Array) -> Array:
    """Return [groups] sums; m is small, so adding columns is faster than summing along the short axis."""
    total = np.zeros(len(taken), np.int16)
    for j in range(taken.shape[1]):
        total += taken[:, j]
    return total
