"""Numbers of a few bits each, packed without gaps: every index is stored like this.

Fields of 13 bits are stored as one plane of whole bytes (the low 8 bits) and one plane of the other 5 bits,
eight of them in 5 bytes. Planes are read and written by shifting whole arrays, never bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# Elements handled at a time: they and their indices stay in the cache. A multiple of 8, so that chunks of
# fields meet at whole bytes.
CHUNK = 1 << 18


def width(values: int) -> int:
    """Return the bits that distinguish so many values: ⌈log2 values⌉."""
    return max(values - 1, 0).bit_length()


def size(count: int, bits: int) -> int:
    """Return the bytes of so many fields."""
    return -(-count * bits // 8)


def pack(values: Array, bits: int) -> Array:
    """Pack integers below 2^bits into fields of `bits` each."""
    out, count, rest = np.empty(size(len(values), bits), np.uint8), len(values), bits % 8
    last = out[bits // 8 * count :]
    for start in range(0, count if bits else 0, CHUNK):
        some = values[start : start + CHUNK]
        for i in range(bits // 8):
            out[i * count + start :][: len(some)] = (some >> (8 * i)).astype(np.uint8)
        if rest:
            plane = _squeeze((some >> (bits - rest)).astype(np.uint8), rest)
            last[start * rest // 8 :][: len(plane)] = plane
    return out


class Packed:
    """Packed fields that are read slice by slice: `fields[a:b]` is an array of int64."""

    def __init__(self, data: Array, count: int, bits: int):
        self.data, self.count, self.bits = data, count, bits

    def __len__(self) -> int:
        return self.count

    @property
    def spare(self) -> int:
        """The unused bits of the last byte: zero, unless the fields are damaged."""
        used = self.count * self.bits % 8
        return int(self.data[-1]) >> used if used else 0

    def chunks(self) -> Iterator[Array]:
        return (self[i : i + CHUNK] for i in range(0, self.count, CHUNK))

    def __getitem__(self, where: slice) -> Array:
        start, stop, _ = where.indices(self.count)
        kind: Any = np.uint16 if self.bits <= 16 else np.int64  # half the work is moving memory
        out = np.zeros(max(stop - start, 0), kind)
        for i in range(self.bits // 8):
            plane = self.data[i * self.count :][start:stop].astype(kind)
            out |= plane << kind(8 * i) if i else plane
        rest = self.bits % 8
        if rest and stop > start:
            first = start // 8 * 8  # eight fields of c bits begin at a whole byte
            plane = self.data[self.bits // 8 * self.count :]
            plane = plane[first * rest // 8 : size(stop, rest)]
            high = _spread(plane, stop - first, rest)[start - first :]
            out |= high.astype(kind) << kind(self.bits - rest)
        return out.astype(np.int64, copy=False)


def _lanes(bits: int, half: int) -> tuple[Any, Any, Any]:
    """Return (mask of the lowest `half` fields in each lane of 2 · half bytes, their bits, gap to a byte)."""
    wide = bits * half
    mask = sum(((1 << wide) - 1) << (16 * half * i) for i in range(4 // half))
    return np.uint64(mask), np.uint64(wide), np.uint64(8 * half - wide)


def _squeeze(values: Array, bits: int) -> Array:
    """Return numbers below 2^bits, bits < 8, as a plane of ⌈count · bits / 8⌉ bytes."""
    if bits == 1:
        return np.packbits(values, bitorder="little")
    padded = np.zeros(-(-len(values) // 8) * 8, np.uint8)
    padded[: len(values)] = values
    words = padded.view("<u8")
    for half in (1, 2, 4):  # move two, four, eight neighbours together, in all words
        mask, wide, gap = _lanes(bits, half)
        words = (words & mask) | ((words >> gap) & (mask << wide))
    eights = words.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)
    packed = np.empty(len(eights) * bits, np.uint8)
    for j in range(bits):
        packed[j::bits] = eights[:, j]
    return packed[: size(len(values), bits)]


def _spread(plane: Array, count: int, bits: int) -> Array:
    """Return the first `count` numbers of a plane."""
    if bits == 1:
        return np.unpackbits(plane, count=count, bitorder="little")
    groups = -(-count // 8)
    padded = np.zeros(groups * bits + 8, np.uint8)
    padded[: len(plane)] = plane
    # A word from every `bits`-th byte; the masks remove what it holds beyond its own eight fields.
    words: Array = np.ndarray((groups,), "<u8", padded, strides=(bits,)).copy()
    for half in (4, 2, 1):
        mask, wide, gap = _lanes(bits, half)
        words = (words & mask) | ((words & (mask << wide)) << gap)
    return words.astype("<u8", copy=False).view(np.uint8)[:count]
