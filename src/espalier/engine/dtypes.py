"""The dtype that a model is saved in, while all computing is in fp32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..core.errors import InvalidValueError, UnknownNameError

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def check_dtype(name: str | None) -> None:
    """Raise unless models can be saved in a dtype; None is that of the model."""
    if name is not None and name not in DTYPES:
        raise UnknownNameError("dtype", name, DTYPES, "dtype")


def round_weights(model: Any, dtype: torch.dtype) -> bool:
    """Round fp32 weights to what a dtype can hold; return whether any changed."""
    changed = False
    for p in model.parameters() if dtype != torch.float32 else ():
        rounded = p.data.to(dtype).float()
        if p.data.isfinite().all() and not rounded.isfinite().all():
            name = str(dtype).removeprefix("torch.")
            raise InvalidValueError(f"some weights are too large for {name}; take bfloat16", "dtype")
        changed = changed or not torch.equal(p.data, rounded)
        p.data = rounded
    return changed


@contextmanager
def in_dtype(model: Any, dtype: torch.dtype) -> Iterator[Any]:
    """Give a model a dtype, for saving; afterwards it is fp32 again."""
    buffers = [(module, dict(module._buffers)) for module in model.modules() if module._buffers]
    try:
        yield model.to(dtype)
    finally:
        model.float()
        for module, own in buffers:  # rotary frequencies are never stored, and would stay rounded
            module._buffers.update(own)
