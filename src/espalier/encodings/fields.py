"""Numbers of a few bits each, packed without a gap: the one way every index is stored.

A field of 13 bits lies as one plane of whole bytes (its low 8 bits) and one plane of the 5 bits that are
left, eight of them in 5 bytes. Planes are read and written by shifting whole arrays, never bit by bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def width(values: int) -> int:
    """Bits that tell so many values apart: ⌈log2 values⌉."""
    return max(values - 1, 0).bit_length()


def size(count: int, bits: int) -> int:
    """Bytes of so many fields."""
    return -(-count * bits // 8)


def pack(values: Array, bits: int) -> Array:
    """Fields of `bits` each, from whole numbers that fit."""
    planes = [(values >> (8 * i)).astype(np.uint8) for i in range(bits // 8)]
    if bits % 8:
        planes.append(_squeeze((values >> (bits - bits % 8)).astype(np.uint8), bits % 8))
    return np.concatenate(planes) if planes else np.empty(0, np.uint8)


class Packed:
    """Packed fields that are read slice by slice: `fields[a:b]` is an array of int64."""

    def __init__(self, data: Array, count: int, bits: int):
        self.data, self.count, self.bits = data, count, bits

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, where: slice) -> Array:
        start, stop, _ = where.indices(self.count)
        out = np.zeros(max(stop - start, 0), np.int64)
        for i in range(self.bits // 8):
            plane = self.data[i * self.count :][start:stop].astype(np.int64)
            out |= plane << (8 * i)
        rest = self.bits % 8
        if rest and stop > start:
            first = start // 8 * 8  # eight fields of c bits begin at a whole byte
            plane = self.data[self.bits // 8 * self.count :]
            plane = plane[first * rest // 8 : size(stop, rest)]
            high = _spread(plane, stop - first, rest)[start - first :]
            out |= high.astype(np.int64) << (self.bits - rest)
        return out


def _squeeze(values: Array, bits: int) -> Array:
    """Numbers below 2^bits, bits < 8, as a plane of ⌈count · bits / 8⌉ bytes."""
    if bits == 1:
        return np.packbits(values, bitorder="little")
    fields = np.zeros((-(-len(values) // 8), 8), np.uint64)
    fields.reshape(-1)[: len(values)] = values
    words = np.zeros(len(fields), np.uint64)
    for j in range(8):
        words |= fields[:, j] << np.uint64(bits * j)
    packed = words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :bits]
    return packed.reshape(-1)[: size(len(values), bits)]


def _spread(plane: Array, count: int, bits: int) -> Array:
    """The first `count` numbers of a plane."""
    if bits == 1:
        return np.unpackbits(plane, count=count, bitorder="little")
    groups = -(-count // 8)
    packed = np.zeros((groups, bits), np.uint8)
    packed.reshape(-1)[: len(plane)] = plane
    bytes_ = np.zeros((groups, 8), np.uint8)
    bytes_[:, :bits] = packed
    words = bytes_.reshape(-1).view("<u8")
    out = np.empty((groups, 8), np.uint8)
    mask = np.uint64((1 << bits) - 1)
    for j in range(8):
        out[:, j] = (words >> np.uint64(bits * j)) & mask
    return out.reshape(-1)[:count]
