"""csr: where each row begins, and the column of each value.

bits = nnz·(n + ⌈log2 cols⌉) + (rows + 1)·⌈log2(nnz + 1)⌉

The first axis makes the rows, all others together the columns. csc is the same of the transposed matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ..errors import EspalierError
from .about import CHUNK, About, Facts
from .fields import Array, Packed, pack, width
from .filling import fill

NEEDS: tuple[str, ...] = ("nnz",)
PARTS = ("values", "columns", "rows")


def matrix(shape: tuple[int, ...], n: int) -> tuple[int, int]:
    """(rows, columns) of a tensor of any shape."""
    rows = shape[0] if len(shape) > 1 else 1
    return rows, n // rows if rows else 0


def fields(about: About, rows: int, columns: int) -> dict[str, tuple[int, int]]:
    nnz = about["nnz"]
    return {
        "values": (nnz, about.value_bits),
        "columns": (nnz, width(columns)),
        "rows": (rows + 1, width(nnz + 1)),
    }


def encode(words: Array, rows: int, columns: int) -> dict[str, Array]:
    places = np.flatnonzero(words)
    row, column = np.divmod(places, max(columns, 1))
    begins = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=rows), out=begins[1:])
    return {
        "values": words[places],
        "columns": pack(column, width(columns)),
        "rows": pack(begins, width(len(places) + 1)),
    }


def decode(rows: int, columns: int, values: Array, parts: Mapping[str, Packed]) -> Array:
    begins = parts["rows"][:]
    if begins[0] != 0 or begins[-1] != len(values) or (np.diff(begins) < 0).any():
        raise EspalierError(f"its rows do not divide {len(values)} values")
    return fill(rows * columns, values, _places(begins, columns, parts["columns"]))


def _places(begins: Array, columns: int, packed: Packed) -> Iterator[Array]:
    step = max(CHUNK // max(columns, 1), 1)
    for first in range(0, len(begins) - 1, step):
        some = begins[first : first + step + 1]
        column = packed[int(some[0]) : int(some[-1])]
        if len(column) and int(column.max()) >= columns:
            raise EspalierError(f"an index points at column {int(column.max())} of {columns}")
        starts = np.arange(first, first + len(some) - 1) * columns
        column += np.repeat(starts, np.diff(some))
        yield column


class Rows:
    """csr"""

    NEEDS, PARTS = NEEDS, PARTS

    @staticmethod
    def fields(about: About) -> dict[str, tuple[int, int]]:
        return fields(about, *matrix(about.shape, about.n))

    @staticmethod
    def options(facts: Facts) -> Iterator[About]:
        yield facts.about("csr", nnz=facts.nnz)

    @staticmethod
    def encode(facts: Facts, about: About) -> dict[str, Array]:
        return encode(facts.words, *matrix(facts.shape, facts.n))

    @staticmethod
    def decode(about: About, values: Array, parts: Mapping[str, Packed]) -> Array:
        return decode(*matrix(about.shape, about.n), values, parts)


class Columns:
    """csc"""

    NEEDS, PARTS = NEEDS, PARTS

    @staticmethod
    def fields(about: About) -> dict[str, tuple[int, int]]:
        return fields(about, *matrix(about.shape, about.n)[::-1])

    @staticmethod
    def options(facts: Facts) -> Iterator[About]:
        yield facts.about("csc", nnz=facts.nnz)

    @staticmethod
    def encode(facts: Facts, about: About) -> dict[str, Array]:
        rows, columns = matrix(facts.shape, facts.n)
        turned = np.ascontiguousarray(facts.words.reshape(rows, columns).T).reshape(-1)
        return encode(turned, columns, rows)

    @staticmethod
    def decode(about: About, values: Array, parts: Mapping[str, Packed]) -> Array:
        rows, columns = matrix(about.shape, about.n)
        turned = decode(columns, rows, values, parts).reshape(columns, rows)
        return np.ascontiguousarray(turned.T).reshape(-1)
