"""Products of fp32 matrices by the faster library of the two that torch ships.

Torch multiplies fp32 matrices by MKL, which uses half of the width of AVX-512 on processors that Intel did
not make; oneDNN, which torch ships for other types, uses all of it. On such processors large products go
to oneDNN inside `fast_products`. Only the order of summation differs. What is timed is kept out of it by
`plain_products`.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

LEAST = 1 << 22  # multiply-accumulates, below which the call costs more than it saves
NARROW = 16  # rows or columns, below which oneDNN is the slower one
FULL_WIDTH = 26  # the first family of AMD's processors (Zen 5) that computes AVX-512 in one piece
_lock = threading.Lock()
_inside, _suspended = 0, 0  # users of `fast_products` and of `plain_products`
_library: torch.library.Library | None = None  # keeps the kernels below registered
_warned = False  # torch tells once in a process that kernels are replaced


@cache
def worthwhile() -> bool:
    """Whether oneDNN multiplies fp32 matrices faster than MKL here, by the make of the processor."""
    wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    maker, family = _make()
    return wide and both and maker == "AuthenticAMD" and family >= FULL_WIDTH


def _make() -> tuple[str, int]:
    """Return maker and family of the processor, where the system tells them."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return "", 0
    maker, family = (re.search(rf"^{name}\s*:\s*(\w+)", text, re.M) for name in ("vendor_id", "cpu family"))
    return maker[1] if maker else "", int(family[1]) if family and family[1].isdecimal() else 0


@contextmanager
def fast_products() -> Iterator[None]:
    """Multiply large fp32 matrices on the processor by oneDNN inside, where that is worthwhile."""
    if not worthwhile():
        yield
        return
    _count(inside=1)
    try:
        yield
    finally:
        _count(inside=-1)


@contextmanager
def plain_products() -> Iterator[None]:
    """Multiply as torch does by itself, also inside `fast_products`: for what is timed."""
    _count(suspended=1)
    try:
        yield
    finally:
        _count(suspended=-1)


def _count(inside: int = 0, suspended: int = 0) -> None:
    """Count users, and register the kernels or take them away as these need it."""
    global _inside, _suspended, _library
    with _lock:
        wanted = _inside + inside > 0 and _suspended + suspended == 0
        if wanted and _library is None:
            _library = _registered()
        elif not wanted and _library is not None:
            _library._destroy()
            _library = None
        _inside, _suspended = _inside + inside, _suspended + suspended


def _registered() -> torch.library.Library:
    global _warned
    library = torch.library.Library("aten", "IMPL")
    try:
        if _warned:
            library.impl("mm", _multiply, "CPU")
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                library.impl("mm", _multiply, "CPU")
            _warned = True
        library.impl("addmm", _multiply_and_add, "CPU")
    except BaseException:
        library._destroy()
        raise
    return library


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    if _large(a, b):
        return _product(a, b)
    return torch.mm(a, b, out=a.new_empty(0))


def _multiply_and_add(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if beta == alpha == 1 and bias.shape == b.shape[1:] and bias.dtype == a.dtype and _large(a, b):
        return _product(a, b, bias.contiguous())
    return torch.addmm(bias, a, b, beta=beta, alpha=alpha, out=a.new_empty(0))


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(_whole(a), _whole(b).t(), bias, "none", [], "")


def _whole(matrix: Tensor) -> Tensor:
    """Return a matrix without gaps between its rows or columns: oneDNN is slow where there are any."""
    return matrix if matrix.is_contiguous() or matrix.t().is_contiguous() else matrix.contiguous()


def _large(a: Tensor, b: Tensor) -> bool:
    if not (a.dim() == b.dim() == 2 and a.shape[1] == len(b)):
        return False  # torch explains what is wrong
    fp32 = a.dtype == b.dtype == torch.float32
    return fp32 and min(*a.shape, b.shape[1]) >= NARROW and a.numel() * b.shape[1] >= LEAST
