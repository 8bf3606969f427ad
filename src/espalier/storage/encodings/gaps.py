"""run_length and rice: the number of zeros before each value, in fields or in Golomb–Rice code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ...core.errors import FormatError
from .encoding import Encoding, Fields
from .fields import CHUNK, Array, Packed, pack
from .source import Source, Spec, fill, values_and_gaps


class RunLength(Encoding):
    """bits = T·(n + r): the zeros before each value, in r bits.

    A longer run needs fillers: the token (2^r − 1, 0) stands for 2^r zeros, so T = nnz + Σ⌊gap / 2^r⌋ tokens,
    about (1−p)·L / (1 − p^(2^r)) for independent zeros. Zeros at the end need no token.
    For comparison: rice or bitmap is smaller on every pruned model measured.
    """

    name, needs, parts = "run_length", ("tokens", "r"), ("values", "runs")

    def fields(self, spec: Spec) -> Fields:
        if not 1 <= spec["r"] <= 32:
            raise FormatError(f"a run has 1 to 32 bits, not {spec['r']}")
        return {"values": (spec["tokens"], spec.value_bits), "runs": (spec["tokens"], spec["r"])}

    def options(self, source: Source) -> Iterator[Spec]:
        for r in range(1, 17):
            tokens = source.nnz + source.overflow(r)
            yield source.spec(self.name, tokens=tokens, r=r)
            if tokens == source.nnz:  # no fillers: wider fields only cost
                return

    def encode(self, source: Source, spec: Spec) -> dict[str, Array]:
        r = spec["r"]
        runs = np.full(spec["tokens"], (1 << r) - 1, np.uint16 if r <= 16 else np.int64)
        values, done = np.zeros(spec["tokens"], source.words.dtype), 0
        for found, gaps in values_and_gaps(source.words):
            own = np.cumsum(1 + (gaps >> r)) + (done - 1)  # each value's token, after its fillers
            if own[-1] >= len(runs):
                raise FormatError(f"the runs need more than {len(runs)} tokens")
            runs[own], values[own] = gaps & ((1 << r) - 1), found
            done = int(own[-1]) + 1
        return {"values": values, "runs": pack(runs, r)}

    def decode(self, spec: Spec, values: Array, parts: Mapping[str, Packed]) -> Array:
        return fill(spec.n, values, _places(parts["runs"].chunks()))  # chunks of at most 2^18 runs of 2^32


class Rice(Encoding):
    """bits = nnz·(n + k + 1) + Σ⌊gap / 2^k⌋: the zeros before each value in Golomb–Rice code.

    The k low bits of every gap are stored together; the rest is unary, so many zero bits and a one.
    For independent zeros this is within a few per cent of the entropy of the mask.
    """

    name, needs, parts = "rice", ("nnz", "k", "unary"), ("values", "low", "high")

    def fields(self, spec: Spec) -> Fields:
        nnz, k = spec["nnz"], spec["k"]
        if k > 32:
            raise FormatError(f"k is 0 to 32, not {k}")
        return {"values": (nnz, spec.value_bits), "low": (nnz, k), "high": (spec["unary"], 1)}

    def options(self, source: Source) -> Iterator[Spec]:
        for k in range(33):
            more = source.overflow(k)
            yield source.spec(self.name, nnz=source.nnz, k=k, unary=source.nnz + more)
            if not more:
                return

    def encode(self, source: Source, spec: Spec) -> dict[str, Array]:
        k = spec["k"]
        values, done, end = np.empty(source.nnz, source.words.dtype), 0, 0
        low = np.empty(source.nnz, np.uint8 if k <= 8 else np.int64)
        high = np.zeros(spec["unary"], np.uint8)
        for found, gaps in values_and_gaps(source.words):
            ones = np.cumsum((gaps >> k) + 1) + (end - 1)
            if ones[-1] >= len(high):
                raise FormatError(f"the gaps need more than {len(high)} bits")
            here = slice(done, done + len(found))
            high[ones], values[here], low[here] = 1, found, gaps & ((1 << k) - 1)
            done, end = here.stop, int(ones[-1]) + 1
        return {"values": values, "low": pack(low, k), "high": pack(high, 1)}

    def decode(self, spec: Spec, values: Array, parts: Mapping[str, Packed]) -> Array:
        high = parts["high"].data
        if int(np.bitwise_count(high).sum(dtype=np.int64)) != spec["nnz"]:
            raise FormatError(f"its gaps are not those of {spec['nnz']} values")
        return fill(spec.n, values, _places(self.gaps(high, spec["unary"], spec["k"], parts["low"])))

    def gaps(self, high: Array, unary: int, k: int, low: Packed) -> Iterator[Array]:
        """Yield the numbers of zeros before the values, chunk by chunk."""
        done, last_one = 0, -1
        for start in range(0, unary, CHUNK):
            piece = high[start // 8 : (start + CHUNK) // 8]
            if not piece.any():
                continue
            ones = np.flatnonzero(np.unpackbits(piece, bitorder="little").view(bool)) + start
            gaps = np.diff(ones, prepend=last_one) - 1
            if int(gaps.max()) >= 1 << 44 - k:  # the shift or the sum below could exceed 64 bits
                raise FormatError("a gap is longer than any tensor")
            gaps <<= k
            gaps |= low[done : done + len(ones)]
            done, last_one = done + len(ones), int(ones[-1])
            yield gaps


def _places(chunks: Iterable[Array]) -> Iterator[Array]:
    """Yield the indices of the values from the gaps before them, chunk by chunk."""
    before = -1
    for gaps in chunks:
        at = np.cumsum(gaps + 1)
        at += before
        before = int(at[-1])
        yield at
