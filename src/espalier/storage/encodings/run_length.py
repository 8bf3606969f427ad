"""run_length: before each value the zeros since the last, in r bits. bits = T·(n + r)

A longer run takes fillers: the token (2^r − 1, 0) stands for 2^r zeros, so T = nnz + Σ⌊gap / 2^r⌋ tokens,
about (1−p)·L / (1 − p^(2^r)) where zeros fall independently. Zeros at the end need no token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ...core.errors import EspalierError
from .about import CHUNK, About, Facts, values_and_gaps
from .fields import Array, Packed, pack
from .filling import fill

NEEDS: tuple[str, ...] = ("tokens", "r")
PARTS = ("values", "runs")


def fields(about: About) -> dict[str, tuple[int, int]]:
    if not 1 <= about["r"] <= 32:
        raise EspalierError(f"a run is told in 1 to 32 bits, not {about['r']}")
    return {"values": (about["tokens"], about.value_bits), "runs": (about["tokens"], about["r"])}


def options(facts: Facts) -> Iterator[About]:
    for r in range(1, 17):
        tokens = facts.nnz + facts.overflow(r)
        yield facts.about("run_length", tokens=tokens, r=r)
        if tokens == facts.nnz:  # no fillers: longer fields only cost
            return


def encode(facts: Facts, about: About) -> dict[str, Array]:
    r = about["r"]
    runs = np.full(about["tokens"], (1 << r) - 1, np.uint16 if r <= 16 else np.int64)
    values, done = np.zeros(about["tokens"], facts.words.dtype), 0
    for found, gaps in values_and_gaps(facts.words):
        own = np.cumsum(1 + (gaps >> r)) + (done - 1)  # each value's token, behind its fillers
        if own[-1] >= len(runs):
            raise EspalierError(f"the runs need more than {len(runs)} tokens")
        runs[own] = gaps & ((1 << r) - 1)
        values[own] = found
        done = int(own[-1]) + 1
    return {"values": values, "runs": pack(runs, r)}


def decode(about: About, values: Array, parts: Mapping[str, Packed]) -> Array:
    return fill(about.n, values, _places(parts["runs"]))


def _places(runs: Packed) -> Iterator[Array]:
    before = -1
    for start in range(0, len(runs), CHUNK):
        at = np.cumsum(runs[start : start + CHUNK] + 1)  # at most 2^18 runs of 2^32
        at += before
        before = int(at[-1])
        yield at
