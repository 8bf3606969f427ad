"""The description of an encoded tensor: encoding, dtype, shape and counts, as files hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from ...core.errors import FormatError

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
