"""csr: where each row begins, and the column of each value.

bits = nnz·(n + ⌈log2 cols⌉) + (rows + 1)·⌈log2(nnz + 1)⌉

The first axis makes the rows, all others together the columns. csc is the same of the transposed matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ...core.errors import EspalierError
from .about import CHUNK, About, Facts, turned, values_and_places
from .fields import Array, Packed, pack, width
from .threads import each

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


def encode(words: Array, rows: int, columns: int, nnz: int) -> dict[str, Array]:
    values, places = values_and_places(words, nnz)
    begins = np.searchsorted(places, np.arange(rows + 1) * columns)
    places -= np.repeat(np.arange(rows) * columns, np.diff(begins))  # no division: it is slow
    return {
        "values": values,
        "columns": pack(places, width(columns)),
        "rows": pack(begins, width(nnz + 1)),
    }


def decode(rows: int, columns: int, values: Array, parts: Mapping[str, Packed]) -> Array:
    begins = parts["rows"][:]
    if begins[0] != 0 or begins[-1] != len(values) or (np.diff(begins) < 0).any():
        raise EspalierError(f"its rows do not divide {len(values)} values")
    out, step = np.zeros(rows * columns, values.dtype), max(CHUNK // columns, 1)

    def one(i: int) -> None:
        """So many rows that they and their indices stay in the cache."""
        some = begins[i * step : (i + 1) * step + 1]
        first, last = int(some[0]), int(some[-1])
        at = parts["columns"][first:last]
        if len(at) and int(at.max()) >= columns:
            raise EspalierError(f"an index points at column {int(at.max())} of {columns}")
        at += np.repeat(np.arange(len(some) - 1) * columns, np.diff(some))
        if not (at[1:] > at[:-1]).all():
            raise EspalierError("its indices do not rise, or one comes twice")
        out[i * step * columns : (i + 1) * step * columns][at] = values[first:last]

    each(-(-rows // step), one)
    return out


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
        return encode(facts.words, *matrix(facts.shape, facts.n), facts.nnz)

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
        words = turned(facts.words.reshape(rows, columns)).reshape(-1)
        return encode(words, columns, rows, facts.nnz)

    @staticmethod
    def decode(about: About, values: Array, parts: Mapping[str, Packed]) -> Array:
        rows, columns = matrix(about.shape, about.n)
        return turned(decode(columns, rows, values, parts).reshape(columns, rows)).reshape(-1)
