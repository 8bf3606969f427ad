"""The precision in which a pass computes: fp32, or bf16 where the processor is faster in it."""

import timeit
from contextlib import AbstractContextManager
from functools import cache

import torch

from ..core import distributed
from ..core.errors import UnknownNameError
from .products import fast_products

FP32 = "fp32"  # in which every model computes unless asked otherwise
PRECISIONS = ("auto", FP32, "bf16")
WORTH = 1.2  # how much faster bf16 must be to be chosen


def check_precision(precision: str) -> None:
    """Raise an error unless there is such a precision."""
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS, "precision")


def resolved(precision: str, device: str = "cpu") -> str:
    """Return fp32 or bf16; auto is bf16 where a product of matrices was measured to be faster in it."""
    check_precision(precision)
    if precision != "auto":
        return precision
    faster = torch.tensor([speed_up(device)])
    # All processes of a run compute in the same precision, whatever each of them measured.
    return "bf16" if float(distributed.all_sum(faster)) / distributed.world_size() >= WORTH else FP32


@cache
def speed_up(device: str = "cpu") -> float:
    """Measure how many times faster a product of matrices is in bf16 than in fp32."""
    with fast_products():
        return _seconds(torch.float32, device) / _seconds(torch.bfloat16, device)


def _seconds(dtype: torch.dtype, device: str, size: int = 512, times: int = 3) -> float:
    a = torch.randn(size, size, device=device).to(dtype)
    # reading a value waits for an asynchronous device
    return min(timeit.repeat(lambda: float((a @ a)[0, 0]), number=1, repeat=times))


def arithmetic(precision: str, device: str = "cpu") -> AbstractContextManager[object]:
    """Multiply matrices in this precision inside; sums, norms and softmax stay in fp32."""
    return fast_products() if precision == FP32 else torch.autocast(device, torch.bfloat16)
