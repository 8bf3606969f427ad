"""In which numbers a pass computes: fp32, or bf16 where the processor is faster in it."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch

from ..core import distributed
from ..core.errors import EspalierError, suggest

PRECISIONS = ("auto", "fp32", "bf16")
WORTH = 1.2  # how much faster bf16 must be to be taken


def check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise EspalierError(
            f"no precision {precision!r}{suggest(precision, PRECISIONS)} There are: {', '.join(PRECISIONS)}"
        )


def resolved(precision: str, device: str = "cpu") -> str:
    """fp32 or bf16; auto is bf16 where a product of matrices was measured to be faster in it."""
    check_precision(precision)
    if precision != "auto":
        return precision
    faster = torch.tensor([speed_up(device)])
    # All processes of a run compute in the same numbers, whatever each of them measured.
    return "bf16" if float(distributed.all_sum(faster)) / distributed.world_size() >= WORTH else "fp32"


@cache
def speed_up(device: str = "cpu") -> float:
    """How many times faster a product of matrices is in bf16 than in fp32, here and now."""
    return _seconds(torch.float32, device) / _seconds(torch.bfloat16, device)


def _seconds(dtype: torch.dtype, device: str, size: int = 512, times: int = 3) -> float:
    a = torch.randn(size, size, device=device).to(dtype)
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        float((a @ a)[0, 0])  # reading it waits for a device that works on its own
        spent.append(time.perf_counter() - start)
    return min(spent)


def arithmetic(precision: str, device: str = "cpu") -> AbstractContextManager[object]:
    """Inside, matrices are multiplied in this precision; sums, norms and softmax stay in fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device, torch.bfloat16)
