"""bitmap: one bit per element, and the values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...core.errors import FormatError
from .encoding import Encoding, Fields
from .fields import CHUNK, Array, Packed
from .source import Source, Spec, chunks, run_threads


class Bitmap(Encoding):
    """bits = (1−p)·L·n + L"""

    name, parts = "bitmap", ("values", "mask")

    def fields(self, spec: Spec) -> Fields:
        return {"values": (spec["nnz"], spec.value_bits), "mask": (spec.n, 1)}

    def encode(self, source: Source, spec: Spec) -> dict[str, Array]:
        pieces = chunks(source.words)
        mask = np.empty(-(-source.n // 8), np.uint8)
        found: list[Array] = [np.empty(0, source.words.dtype)] * (len(pieces) + 1)

        def encode_piece(i: int) -> None:
            taken = pieces[i] != 0
            found[i] = pieces[i].take(np.flatnonzero(taken))  # by index: four times as fast as by a mask
            packed = np.packbits(taken, bitorder="little")
            mask[i * CHUNK // 8 :][: len(packed)] = packed

        run_threads(len(pieces), encode_piece)
        return {"values": np.concatenate(found), "mask": mask}

    def decode(self, spec: Spec, values: Array, parts: Mapping[str, Packed]) -> Array:
        mask = parts["mask"].data
        ones = np.bitwise_count(mask)
        if int(ones.sum(dtype=np.int64)) != len(values):
            raise FormatError(f"its mask does not have {len(values)} bits set")
        out, step = np.zeros(spec.n, values.dtype), CHUNK // 8
        counts = np.add.reduceat(ones, np.arange(0, len(ones), step), dtype=np.int64)
        ends = np.cumsum(counts)

        def decode_piece(i: int) -> None:
            bits = np.unpackbits(mask[i * step : (i + 1) * step], bitorder="little")
            at = np.flatnonzero(bits.view(bool))  # indices first: four times as fast as out[bits] = …
            out[i * CHUNK : (i + 1) * CHUNK][at] = values[ends[i] - counts[i] : ends[i]]

        run_threads(len(counts), decode_piece)
        return out
