"""Products of fp32 matrices by the faster library of the two that torch ships.

Torch multiplies fp32 matrices by MKL, which uses half of the width of AVX-512 on processors that Intel did
not make; oneDNN, which torch ships for other types, uses all of it. On such processors large products go
to oneDNN inside `fast_products`. Only the order of summation differs. What is timed runs outside of it.
"""

from __future__ import annotations

import platform
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

LEAST = 1 << 22  # multiply-accumulates, below which the call costs more than it saves
_lock = threading.Lock()
_inside, _library = 0, None  # users of the kernels below, and what keeps them registered


@cache
def worthwhile() -> bool:
    """Whether oneDNN multiplies fp32 matrices faster than MKL here, by the processor's maker and width."""
    wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return wide and both and "AMD" in _maker()


def _maker() -> str:
    """Return the name that a processor gives its maker, or nothing where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()  # Windows tells it there
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


@contextmanager
def fast_products() -> Iterator[None]:
    """Multiply large fp32 matrices on the processor by oneDNN inside, where that is worthwhile."""
    if not worthwhile():
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _inside, _library
    with _lock:
        _inside += 1
        if _inside == 1:
            _library = torch.library.Library("aten", "IMPL")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that kernels of torch are replaced: until `_leave`
                _library.impl("mm", _multiply, "CPU")
                _library.impl("addmm", _multiply_and_add, "CPU")


def _leave() -> None:
    global _inside, _library
    with _lock:
        _inside -= 1
        if _inside == 0 and _library is not None:
            _library._destroy()
            _library = None


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    if _large(a, b):
        return _product(a, b)
    return torch.mm(a, b, out=a.new_empty(0))


def _multiply_and_add(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if beta == alpha == 1 and bias.shape == b.shape[1:] and bias.dtype == a.dtype and _large(a, b):
        return _product(a, b, bias)
    return torch.addmm(bias, a, b, beta=beta, alpha=alpha, out=a.new_empty(0))


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(_whole(a), _whole(b).t(), bias, "none", [], "")


def _whole(matrix: Tensor) -> Tensor:
    """Return a matrix without gaps between its rows or columns: oneDNN is slow where there are any."""
    return matrix if matrix.is_contiguous() or matrix.t().is_contiguous() else matrix.contiguous()


def _large(a: Tensor, b: Tensor) -> bool:
    fits = a.dim() == b.dim() == 2 and a.shape[1] == len(b)  # torch explains what does not
    return fits and a.dtype == b.dtype == torch.float32 and a.numel() * b.shape[1] >= LEAST
