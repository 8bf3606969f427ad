"""Numbers of a few bits each, packed without a gap: the one way every index is stored.

A field of 13 bits lies as one plane of whole bytes (its low 8 bits) and one plane of the 5 bits that are
left, eight of them in 5 bytes. Planes are read and written by shifting whole arrays, never bit by bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
BLOCK = 1 << 18  # fields packed at a time, a multiple of 8 so that blocks meet at whole bytes


def width(values: int) -> int:
    """Bits that tell so many values apart: ⌈log2 values⌉."""
    return max(values - 1, 0).bit_length()


def size(count: int, bits: int) -> int:
    """Bytes of so many fields."""
    return -(-count * bits // 8)


def pack(values: Array, bits: int) -> Array:
    """Fields of `bits` each, from whole numbers that fit."""
    out, count, rest = np.empty(size(len(values), bits), np.uint8), len(values), bits % 8
    last = out[bits // 8 * count :]
    for start in range(0, count if bits else 0, BLOCK):
        some = values[start : start + BLOCK]
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
        """The bits that fill up the last byte: zero, unless the fields were damaged."""
        used = self.count * self.bits % 8
        return int(self.data[-1]) >> used if used else 0

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
    """(mask of `half` fields at the bottom of every lane of 2 · half bytes, their bits, the gap to a byte)"""
    wide = bits * half
    mask = sum(((1 << wide) - 1) << (16 * half * i) for i in range(4 // half))
    return np.uint64(mask), np.uint64(wide), np.uint64(8 * half - wide)


def _squeeze(values: Array, bits: int) -> Array:
    """Numbers below 2^bits, bits < 8, as a plane of ⌈count · bits / 8⌉ bytes."""
    if bits == 1:
        return np.packbits(values, bitorder="little")
    padded = np.zeros(-(-len(values) // 8) * 8, np.uint8)
    padded[: len(values)] = values
    words = padded.view("<u8")
    for half in (1, 2, 4):  # two, four, eight neighbours move together, in all words at once
        mask, wide, gap = _lanes(bits, half)
        words = (words & mask) | ((words >> gap) & (mask << wide))
    eights = words.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)
    packed = np.empty(len(eights) * bits, np.uint8)
    for j in range(bits):
        packed[j::bits] = eights[:, j]
    return packed[: size(len(values), bits)]


def _spread(plane: Array, count: int, bits: int) -> Array:
    """The first `count` numbers of a plane."""
    if bits == 1:
        return np.unpackbits(plane, count=count, bitorder="little")
    groups = -(-count // 8)
    padded = np.zeros(groups * bits + 8, np.uint8)
    padded[: len(plane)] = plane
    # A word from every `bits`-th byte; what it holds beyond its own eight fields the masks take away.
    words: Array = np.ndarray((groups,), "<u8", padded, strides=(bits,)).copy()
    for half in (4, 2, 1):
        mask, wide, gap = _lanes(bits, half)
        words = (words & mask) | ((words & (mask << wide)) << gap)
    return words.astype("<u8", copy=False).view(np.uint8)[:count]
