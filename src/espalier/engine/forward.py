"""Another forward for a module, for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def other_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Call `forward` instead of the module's own inside; one that the instance had before is restored."""
    before = module.__dict__.get("forward")  # accelerate sets one where a model is spread over devices
    module.forward = forward
    try:
        yield
    finally:
        module.__dict__.pop("forward", None)
        if before is not None:
            module.forward = before
