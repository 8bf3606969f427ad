"""rice: the zeros before each value in Golomb–Rice code. bits = nnz·(n + k + 1) + Σ⌊gap / 2^k⌋

The k low bits of every gap lie together; the rest is unary, so many zero bits and a one, all in one string.
For zeros that fall independently this is within a few per cent of the entropy of the mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ...core.errors import EspalierError
from .about import CHUNK, About, Facts, values_and_gaps
from .fields import Array, Packed, pack
from .filling import fill

NEEDS: tuple[str, ...] = ("nnz", "k", "unary")
PARTS = ("values", "low", "high")


def fields(about: About) -> dict[str, tuple[int, int]]:
    if about["k"] > 32:
        raise EspalierError(f"k is 0 to 32, not {about['k']}")
    return {
        "values": (about["nnz"], about.value_bits),
        "low": (about["nnz"], about["k"]),
        "high": (about["unary"], 1),
    }


def options(facts: Facts) -> Iterator[About]:
    for k in range(33):
        more = facts.overflow(k)
        yield facts.about("rice", nnz=facts.nnz, k=k, unary=facts.nnz + more)
        if not more:
            return


def encode(facts: Facts, about: About) -> dict[str, Array]:
    k = about["k"]
    values, done, end = np.empty(facts.nnz, facts.words.dtype), 0, 0
    low = np.empty(facts.nnz, np.uint8 if k <= 8 else np.int64)
    high = np.zeros(about["unary"], np.uint8)
    for found, gaps in values_and_gaps(facts.words):
        ones = np.cumsum((gaps >> k) + 1) + (end - 1)
        if ones[-1] >= len(high):
            raise EspalierError(f"the gaps need more than {len(high)} bits")
        here = slice(done, done + len(found))
        high[ones], values[here], low[here] = 1, found, gaps & ((1 << k) - 1)
        done, end = here.stop, int(ones[-1]) + 1
    return {"values": values, "low": pack(low, k), "high": pack(high, 1)}


def decode(about: About, values: Array, parts: Mapping[str, Packed]) -> Array:
    high = parts["high"].data
    if int(np.bitwise_count(high).sum(dtype=np.int64)) != about["nnz"]:
        raise EspalierError(f"its gaps are not those of {about['nnz']} values")
    return fill(about.n, values, _places(high, about["unary"], about["k"], parts["low"]))


def _places(high: Array, unary: int, k: int, low: Packed) -> Iterator[Array]:
    done, last_one, before = 0, -1, -1
    for start in range(0, unary, CHUNK):
        piece = high[start // 8 : (start + CHUNK) // 8]
        if not piece.any():
            continue
        ones = np.flatnonzero(np.unpackbits(piece, bitorder="little").view(bool)) + start
        gaps = np.diff(ones, prepend=last_one) - 1
        if int(gaps.max()) >= 1 << 44 - k:  # or the shift or the sum below could pass 64 bits
            raise EspalierError("a gap is longer than any tensor")
        gaps <<= k
        gaps |= low[done : done + len(ones)]
        at = np.cumsum(gaps + 1)
        at += before
        done, last_one, before = done + len(ones), int(ones[-1]), int(at[-1])
        yield at
