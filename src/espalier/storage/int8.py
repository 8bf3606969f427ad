"""Weights in eight bits: symmetric, one scale per output, zeros stay zeros. Error: at most half a scale."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

FLOATS = ("float64", "float32", "bfloat16", "float16")
TINIEST = torch.finfo(torch.float32).tiny


def is_block_matrix(name: str, dtype: str, shape: Sequence[int]) -> bool:
    """Return whether a tensor is a matrix in a numbered block (`layer.3.query.weight`), no embedding or norm.

    A number alone is not a block: `classifier.1.weight` is a layer of a head.
    """
    return (
        dtype in FLOATS
        and len(shape) == 2
        and re.search(r"(^|\.)\d+\.[^.\d][^.]*\.", name) is not None
        and re.search(r"bias|norm|embed", name.lower()) is None
    )


def to_int8(weight: Tensor, axis: int = 0) -> tuple[Tensor, Tensor] | None:
    """Return (int8 numbers, float32 scales along the axis), or None for inf, NaN and tiny values."""
    wide = weight.detach().cpu()
    wide = wide if wide.dtype == torch.float64 else wide.float()
    most = wide.abs().amax(1 - axis) if wide.numel() else wide.new_zeros(wide.shape[axis])
    scales = (most / 127).float()
    # The largest must stay at 127 after the scale was rounded, and no scale may be a subnormal number.
    if not torch.isfinite(scales).all() or bool(((scales < TINIEST) & (most > 0)).any()):
        return None
    by = torch.where(scales > 0, scales, 1).to(wide.dtype).unsqueeze(1 - axis)
    return (wide / by).round().clamp(-127, 127).to(torch.int8), scales


def from_int8(numbers: Tensor, scales: Tensor, dtype: torch.dtype, axis: int = 0) -> Tensor:
    """Return the weight that `to_int8` rounded."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return numbers.to(wide).mul_(scales.to(wide).unsqueeze(1 - axis)).to(dtype)
