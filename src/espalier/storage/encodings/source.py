"""A tensor as integer words, with the counts that encodings need, and its description in files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from math import log2, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.errors import FormatError, UnsupportedError
from .fields import CHUNK, Array

# The dtypes that are encoded, with their names in safetensors, as far as this torch has them.
NAMES = {f"{kind}{bits}": f"{kind[0].upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
NAMES |= {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "complex64": "C64"}
NAMES |= {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "bool": "BOOL"}
NAMES |= {"float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ"}
PAIRED = "float4_e2m1fn_x2"  # two numbers per element: its shape in a file differs, so it stays plain there
DTYPES: dict[str, torch.dtype] = {n: getattr(torch, n) for n in (*NAMES, PAIRED) if hasattr(torch, n)}
MAX_ELEMENTS = 1 << 56  # of one tensor: every sum and product of counts stays within 64 bits


@dataclass(frozen=True)
class Spec:
    """Encoding, dtype, shape, and the counts from which the encoding computes its size."""

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
        shape = list(self.shape)
        return {"encoding": self.encoding, "dtype": self.dtype, "shape": shape, **self.counts}


def read_spec(raw: Any, needs: Mapping[str, tuple[str, ...]]) -> Spec:
    """Return the Spec in a file's JSON, which may be anything; `needs` has the counts of each encoding."""
    raw = dict(raw) if isinstance(raw, dict) else {}
    encoding, dtype, shape = raw.pop("encoding", None), raw.pop("dtype", None), raw.pop("shape", None)
    if not isinstance(encoding, str) or encoding not in needs:
        raise FormatError(f"unknown encoding {encoding!r}. Valid: {', '.join(needs)}"[:300])
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FormatError(f"unknown dtype {dtype!r}"[:200])
    if not isinstance(shape, list) or len(shape) > 32 or not all(map(_is_count, shape)):
        raise FormatError(f"its shape is {shape!r}"[:200])
    if prod(max(n, 1) for n in shape) > MAX_ELEMENTS:
        raise FormatError(f"its shape {shape} has more than 2^56 elements")
    if set(raw) != set(needs[encoding]) or not all(map(_is_count, raw.values())):
        expected = ", ".join(needs[encoding]) or "none"
        raise FormatError(f"{encoding} needs the counts {expected} and has {raw!r}"[:300])
    return Spec(encoding, dtype, tuple(shape), raw)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_ELEMENTS


class Source:
    """One tensor to encode. A zero is a word with no bit set, so −0.0 is a value."""

    def __init__(self, tensor: Tensor):
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise UnsupportedError(f"{name} cannot be encoded. Valid: {', '.join(DTYPES)}")
        self.dtype, self.shape = name, tuple(tensor.shape)
        self.words = words_of(tensor)
        self.n = len(self.words)

    @cached_property
    def nnz(self) -> int:
        return int(np.count_nonzero(self.words))

    @cached_property
    def gaps(self) -> tuple[Array, Array]:
        """(lengths, counts) of the runs of zeros before each value."""
        short, long = np.zeros(1 << 16, np.int64), [np.empty(0, np.int64)]
        for _, gap in values_and_gaps(self.words):
            if (longest := int(gap.max())) < len(short):
                short[: longest + 1] += np.bincount(gap)
            else:
                long.append(gap)
        lengths, counts = np.unique(np.concatenate(long), return_counts=True)
        used = np.flatnonzero(short)
        return np.concatenate([used, lengths]), np.concatenate([short[used], counts])

    def overflow(self, bits: int) -> int:
        """Return Σ ⌊gap / 2^bits⌋: how many extra steps of 2^bits the gaps need."""
        lengths, counts = self.gaps
        return int(((lengths >> bits) * counts).sum())

    @property
    def negative_zeros(self) -> int:
        """Words with only the sign bit set: −0.0 in a floating dtype."""
        return int(np.count_nonzero(self.words == np.iinfo(self.words.dtype).min))

    @property
    def bound(self) -> float:
        """The information bound in bytes for independent zeros: the values and the entropy of the mask."""
        p = self.nnz / self.n if self.n else 0.0
        entropy = -sum(q * log2(q) for q in (p, 1 - p) if q)
        sparse = self.nnz * self.words.itemsize + self.n * entropy / 8
        return min(sparse, float(self.words.nbytes))

    def spec(self, encoding: str, **counts: int) -> Spec:
        return Spec(encoding, self.dtype, self.shape, counts)


def words_of(tensor: Tensor) -> Array:
    """Return [n] integers with the tensor's bits; they share its memory if it is contiguous on the CPU."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    bits: torch.dtype = getattr(torch, f"int{8 * flat.element_size()}")
    return flat.view(bits).numpy()


def tensor_of(words: Array, dtype: str, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(words).view(DTYPES[dtype]).reshape(shape)


def transpose(table: Array) -> Array:
    """Return [a, b] as contiguous [b, a]; torch does it in blocks, which NumPy does not."""
    return torch.from_numpy(table).t().contiguous().numpy()


def chunks(words: Array) -> list[Array]:
    return [words[i : i + CHUNK] for i in range(0, len(words), CHUNK)]


def values_and_gaps(words: Array) -> Iterator[tuple[Array, Array]]:
    """Yield chunk by chunk the words that are not zero, and the number of zeros before each."""
    last = -1
    for i, chunk in enumerate(chunks(words)):
        at = np.flatnonzero(chunk != 0)
        if len(at):
            gaps = np.diff(at, prepend=last - i * CHUNK)
            gaps -= 1
            last = int(at[-1]) + i * CHUNK
            yield chunk.take(at), gaps


def fill(n: int, values: Array, places: Iterable[Array]) -> Array:
    """Return [n] zeros with the values at their places, which come chunk by chunk in rising order."""
    out = np.zeros(n, values.dtype)
    last, done = -1, 0
    for at in places:
        if not len(at):
            continue
        if at[0] <= last or (len(at) > 1 and not (at[1:] > at[:-1]).all()):
            raise FormatError("its indices do not increase")
        last = int(at[-1])
        if last >= n:
            raise FormatError(f"an index points at element {last} of {n}")
        out[at] = values[done : done + len(at)]
        done += len(at)
    if done != len(values):
        raise FormatError(f"it has {len(values)} values for {done} places")
    return out


def run_threads(pieces: int, work: Callable[[int], None]) -> None:
    """Call work(0), work(1), … on as many threads as torch may use; NumPy releases the interpreter lock."""
    threads = max(min(torch.get_num_threads(), pieces), 1)

    def share(first: int) -> None:
        for piece in range(first, pieces, threads):
            work(piece)

    if threads == 1:
        share(0)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(share, range(threads)))
