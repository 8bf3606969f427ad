"""bitmap: one bit per element, and the values. bits = (1−p)·L·n + L"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ..errors import EspalierError
from .about import CHUNK, About, Facts, chunks, values_of
from .fields import Array, Packed

NEEDS: tuple[str, ...] = ("nnz",)
PARTS = ("values", "mask")


def fields(about: About) -> dict[str, tuple[int, int]]:
    return {"values": (about["nnz"], about.value_bits), "mask": (about.n, 1)}


def options(facts: Facts) -> Iterator[About]:
    yield facts.about("bitmap", nnz=facts.nnz)


def encode(facts: Facts, about: About) -> dict[str, Array]:
    mask = [np.packbits(chunk != 0, bitorder="little") for chunk in chunks(facts.words)]
    mask.append(np.empty(0, np.uint8))  # a tensor may have no chunk
    return {"values": values_of(facts.words, facts.nnz), "mask": np.concatenate(mask)}


def decode(about: About, values: Array, parts: Mapping[str, Packed]) -> Array:
    mask = parts["mask"].data
    if int(np.bitwise_count(mask).sum(dtype=np.int64)) != len(values):
        raise EspalierError(f"its mask does not have {len(values)} bits set")
    if about.n % 8 and len(mask) and int(mask[-1]) >> about.n % 8:
        raise EspalierError("its mask has bits beyond the last element")
    out, done = np.zeros(about.n, values.dtype), 0
    for start in range(0, about.n, CHUNK):
        bits = np.unpackbits(mask[start // 8 : (start + CHUNK) // 8], bitorder="little")
        at = np.flatnonzero(bits.view(bool))  # places first: four times as fast as out[bits] = …
        out[start : start + CHUNK][at] = values[done : done + len(at)]
        done += len(at)
    return out
