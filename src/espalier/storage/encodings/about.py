"""What an encoded tensor says about itself, and what is known of a tensor before it is encoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import log2, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.errors import EspalierError
from .fields import Array

# The dtypes that are encoded, by their names in safetensors, as far as this torch has them.
NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
PAIRED = "float4_e2m1fn_x2"  # two numbers to an element: another shape in a file, so there it stays plain
DTYPES: dict[str, torch.dtype] = {n: getattr(torch, n) for n in (*NAMES, PAIRED) if hasattr(torch, n)}
WORDS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
MOST = 1 << 56  # elements of one tensor: every sum and product below stays within 64 bits
CHUNK = 1 << 18  # elements handled at a time, so that they and their indices stay in the cache


@dataclass(frozen=True)
class About:
    """Encoding, dtype, shape, and the counts that the encoding needs to know its own size."""

    encoding: str
    dtype: str
    shape: tuple[int, ...]
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return prod(self.shape)

    @property
    def value_bits(self) -> int:
        return 8 * DTYPES[self.dtype].itemsize

    def __getitem__(self, name: str) -> int:
        return self.counts[name]

    def to_dict(self) -> dict[str, Any]:
        return {
            "encoding": self.encoding,
            "dtype": self.dtype,
            "shape": list(self.shape),
            **self.counts,
        }


def read_about(raw: Any, needs: Mapping[str, tuple[str, ...]]) -> About:
    """An About from a file, where anything may stand; `needs` are the counts of each encoding."""
    if not isinstance(raw, dict):
        raise EspalierError("its description is not a table")
    encoding, dtype, shape = raw.get("encoding"), raw.get("dtype"), raw.get("shape")
    if not isinstance(encoding, str) or encoding not in needs:
        raise EspalierError(f"there is no encoding {encoding!r}. There are: {', '.join(needs)}")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise EspalierError(f"there is no dtype {dtype!r} that is encoded")
    if not isinstance(shape, list) or len(shape) > 32 or not all(map(_is_count, shape)):
        raise EspalierError(f"its shape is {shape!r}"[:200])
    if prod(max(n, 1) for n in shape) > MOST:
        raise EspalierError(f"its shape {shape} is more than a computer holds")
    counts = {k: v for k, v in raw.items() if k not in ("encoding", "dtype", "shape")}
    if set(counts) != set(needs[encoding]) or not all(map(_is_count, counts.values())):
        raise EspalierError(
            f"{encoding} needs the counts {', '.join(needs[encoding]) or 'none'} and has {counts!r}"[:300]
        )
    return About(encoding, dtype, tuple(shape), counts)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


class Facts:
    """One tensor as integer words of its own size; a zero is a word with no bit set, so −0.0 is a value."""

    def __init__(self, tensor: Tensor):
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise EspalierError(f"{name} is not encoded. These are: {', '.join(DTYPES)}")
        self.dtype, self.shape = name, tuple(tensor.shape)
        self.words = words_of(tensor)
        self.n = len(self.words)

    @cached_property
    def nnz(self) -> int:
        return sum(int(np.count_nonzero(c)) for c in chunks(self.words))

    @cached_property
    def gaps(self) -> tuple[Array, Array]:
        """(lengths, how many) of the runs of zeros before each value."""
        short, long = np.zeros(1 << 16, np.int64), [np.empty(0, np.int64)]
        for _, gap in values_and_gaps(self.words):
            if (most := int(gap.max())) < len(short):
                short[: most + 1] += np.bincount(gap)
            else:
                long.append(gap)
        lengths, many = np.unique(np.concatenate(long), return_counts=True)
        some = np.flatnonzero(short)
        return np.concatenate([some, lengths]), np.concatenate([short[some], many])

    def overflow(self, bits: int) -> int:
        """Σ ⌊gap / 2^bits⌋: how often a gap needs one more step of 2^bits."""
        lengths, many = self.gaps
        return int(((lengths >> bits) * many).sum())

    @property
    def minus_zeros(self) -> int:
        """Words with the sign bit alone: in a floating dtype, −0.0."""
        least = np.iinfo(self.words.dtype).min
        return sum(int(np.count_nonzero(chunk == least)) for chunk in chunks(self.words))

    def about(self, encoding: str, **counts: int) -> About:
        return About(encoding, self.dtype, self.shape, counts)

    @property
    def bound(self) -> float:
        """Bytes below which zeros that fall independently do not go: values, and the entropy of the mask."""
        p = self.nnz / self.n if self.n else 0.0
        entropy = -sum(q * log2(q) for q in (p, 1 - p) if q)
        sparse = self.nnz * self.words.itemsize + self.n * entropy / 8
        return min(sparse, float(self.words.nbytes))


def words_of(tensor: Tensor) -> Array:
    """[n] integers that share the tensor's bits, and its memory where it is contiguous on the CPU."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    bits: torch.dtype = getattr(torch, f"int{8 * flat.element_size()}")
    return flat.view(bits).numpy()


def tensor_of(words: Array, about: About) -> Tensor:
    return torch.from_numpy(words).view(DTYPES[about.dtype]).reshape(about.shape)


def turned(table: Array) -> Array:
    """[a, b] -> [b, a], contiguous; torch goes block by block, which NumPy does not."""
    return torch.from_numpy(table).t().contiguous().numpy()


def chunks(words: Array) -> list[Array]:
    return [words[i : i + CHUNK] for i in range(0, len(words), CHUNK)]


def values_and_gaps(words: Array) -> Iterator[tuple[Array, Array]]:
    """Chunk by chunk the words that are not zero, and how many zeros stand before each."""
    last = -1
    for i, chunk in enumerate(chunks(words)):
        at = np.flatnonzero(chunk != 0)
        if len(at):
            gaps = np.diff(at, prepend=last - i * CHUNK)
            gaps -= 1
            last = int(at[-1]) + i * CHUNK
            yield chunk.take(at), gaps


def values_and_places(words: Array, nnz: int) -> tuple[Array, Array]:
    """The words that are not zero, in order, and where they are."""
    values, places, done = np.empty(nnz, words.dtype), np.empty(nnz, np.int64), 0
    for i, chunk in enumerate(chunks(words)):
        at = np.flatnonzero(chunk != 0)  # of a mask: ten times as fast as of the words
        here = slice(done, done + len(at))
        values[here] = chunk[at]  # by index: four times as fast as by a mask
        np.add(at, i * CHUNK, out=places[here])
        done += len(at)
    return values, places
