"""Products of nothing, in layers that lost all their units: runtimes err on them, and a bias is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ..core.types import PreTrainedModel


@contextmanager
def biases_for_empty_products(model: PreTrainedModel) -> Iterator[None]:
    """Let every product with a matrix without inputs return its bias, for as long as a model is traced."""
    empty = [m for m in model.modules() if _reads_nothing(m)]
    try:
        for module in empty:
            module.forward = _bias_of(module)  # type: ignore[method-assign]
        yield
    finally:
        for module in empty:
            del module.forward


def _reads_nothing(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or weight.numel():
        return False
    linear = isinstance(module, nn.Linear)  # the other way round: Conv1D of GPT-2
    return weight.shape[1 if linear else 0] == 0


def _bias_of(module: Any) -> Callable[[Tensor], Tensor]:
    width = int(module.weight.shape[0 if isinstance(module, nn.Linear) else 1])

    def forward(x: Tensor) -> Tensor:
        out = x.new_zeros(*x.shape[:-1], width)
        return out if module.bias is None else out + module.bias

    return forward
