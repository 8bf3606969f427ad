"""Weights in eight bits: one scale per row, symmetric, zeros stay zeros. Lossy: at most half a scale off."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

FLOATS = ("float32", "float16", "bfloat16", "float64")
TINIEST = torch.finfo(torch.float32).tiny


def is_block_matrix(name: str, dtype: str, shape: Sequence[int]) -> bool:
    """A matrix of a numbered block (`encoder.layer.3.…weight`); no embedding, bias or norm."""
    return (
        dtype in FLOATS
        and len(shape) == 2
        and re.search(r"(^|\.)\d+\.", name) is not None
        and re.search(r"bias|norm|embed", name.lower()) is None
    )


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """(int8 numbers, one float32 scale per row), or None where they cannot say it: inf, NaN, too small."""
    wide = weight.detach().cpu()
    wide = wide if wide.dtype == torch.float64 else wide.float()
    most = wide.abs().amax(1) if wide.numel() else wide.new_zeros(len(wide))
    scales = (most / 127).float()
    # The largest must stay at 127 after the scale was rounded, and no scale may be a subnormal number.
    if not torch.isfinite(scales).all() or bool(((scales < TINIEST) & (most > 0)).any()):
        return None
    by = torch.where(scales > 0, scales, 1).to(wide.dtype)[:, None]
    return (wide / by).round().clamp(-127, 127).to(torch.int8), scales


def from_int8(numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return numbers.to(wide).mul_(scales.to(wide)[:, None]).to(dtype)
