"""Memory that a recurrent model carries from one segment of a text to the next."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


def memory_length(model: nn.Module) -> int:
    """Return how many tokens before a segment a model can attend to; 0 if it has no memory."""
    takes = "mems" in inspect.signature(type(model).forward).parameters
    return int(getattr(model.config, "mem_length", 0) or 0) if takes else 0


class Memory:
    """What a model returned as `mems` of one segment, given to it with the next."""

    def __init__(self) -> None:
        self.tensors: tuple[Tensor, ...] = ()  # of each layer, [rows, tokens, width]; () before a text

    @contextmanager
    def carried(self, model: nn.Module) -> Iterator[Memory]:
        """Give the model its memory in every pass inside, and keep what it returns."""

        def give(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            return args, {**kwargs, "mems": self.tensors}

        def keep(_: nn.Module, args: Any, out: Any) -> None:
            self.tensors = out.mems

        hooks = [model.register_forward_pre_hook(give, with_kwargs=True), model.register_forward_hook(keep)]
        try:
            yield self
        finally:
            for hook in hooks:
                hook.remove()
