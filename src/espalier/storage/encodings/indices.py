"""coo, csr and csc: the index of each value.

For comparison: rice or bitmap is smaller on every pruned model measured.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...core.errors import FormatError
from .encoding import Encoding, Fields
from .fields import CHUNK, Array, Packed, pack, width
from .source import Source, Spec, fill, run_threads, transpose


class Coordinates(Encoding):
    """coo: the index of each value in the flat tensor. bits = (1−p)·L·(n + ⌈log2 L⌉)"""

    name, parts = "coo", ("values", "places")

    def fields(self, spec: Spec) -> Fields:
        return {"values": (spec["nnz"], spec.value_bits), "places": (spec["nnz"], width(spec.n))}

    def encode(self, source: Source, spec: Spec) -> dict[str, Array]:
        places = np.flatnonzero(source.words != 0)  # of a mask: ten times as fast as of the words
        return {"values": source.words[places], "places": pack(places, width(source.n))}

    def decode(self, spec: Spec, values: Array, parts: Mapping[str, Packed]) -> Array:
        return fill(spec.n, values, parts["places"].chunks())


class CompressedRows(Encoding):
    """csr: where each row begins, and the column of each value.

    bits = nnz·(n + ⌈log2 cols⌉) + (rows + 1)·⌈log2(nnz + 1)⌉
    The first axis makes the rows, all others together the columns.
    """

    name, parts, transposed = "csr", ("values", "columns", "rows"), False

    def _matrix(self, shape: tuple[int, ...], n: int) -> tuple[int, int]:
        """Return (rows, columns) in which a tensor of any shape is stored."""
        rows = shape[0] if len(shape) > 1 else 1
        columns = n // rows if rows else 0
        return (columns, rows) if self.transposed else (rows, columns)

    def fields(self, spec: Spec) -> Fields:
        (rows, columns), nnz = self._matrix(spec.shape, spec.n), spec["nnz"]
        index = {"columns": (nnz, width(columns)), "rows": (rows + 1, width(nnz + 1))}
        return {"values": (nnz, spec.value_bits), **index}

    def encode(self, source: Source, spec: Spec) -> dict[str, Array]:
        rows, columns = self._matrix(source.shape, source.n)
        words, nnz = source.words, source.nnz
        if self.transposed:
            words = transpose(words.reshape(columns, rows)).reshape(-1)
        places = np.flatnonzero(words != 0)
        values = words[places]
        begins = np.searchsorted(places, np.arange(rows + 1) * columns)
        places -= np.repeat(np.arange(rows) * columns, np.diff(begins))  # no division: it is slow
        index = {"columns": pack(places, width(columns)), "rows": pack(begins, width(nnz + 1))}
        return {"values": values, **index}

    def decode(self, spec: Spec, values: Array, parts: Mapping[str, Packed]) -> Array:
        rows, columns = self._matrix(spec.shape, spec.n)
        begins = parts["rows"][:]
        if begins[0] != 0 or begins[-1] != len(values) or (np.diff(begins) < 0).any():
            raise FormatError(f"its rows do not divide {len(values)} values")
        out, step = np.zeros(rows * columns, values.dtype), max(CHUNK // columns, 1)

        def decode_rows(i: int) -> None:
            """Decode so many rows that they and their indices stay in the cache."""
            some = begins[i * step : (i + 1) * step + 1]
            first, last = int(some[0]), int(some[-1])
            at = parts["columns"][first:last]
            if len(at) and int(at.max()) >= columns:
                raise FormatError(f"an index points at column {int(at.max())} of {columns}")
            at += np.repeat(np.arange(len(some) - 1) * columns, np.diff(some))
            if not (at[1:] > at[:-1]).all():
                raise FormatError("its indices do not increase")
            out[i * step * columns : (i + 1) * step * columns][at] = values[first:last]

        run_threads(-(-rows // step), decode_rows)
        return transpose(out.reshape(rows, columns)).reshape(-1) if self.transposed else out


class CompressedColumns(CompressedRows):
    """csc: csr of the transposed matrix."""

    name, transposed = "csc", True
