"""Where a classifier reads one token, the last block need not finish the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor, nn

from ..architectures.table import architecture_of, blocks


@contextmanager
def first_token_only(model: nn.Module) -> Iterator[bool]:
    """After the last attention, only the first token goes on: the logits, and nothing else, are the same.

    True where the architecture names the place (`tail`) and the model is a classifier of transformers' own, whose
    head reads that token; elsewhere, and where hidden states are given out too, nothing happens.
    """
    module = _tail(model)
    if module is None:
        yield False
        return

    def first(_: nn.Module, args: Any, kwargs: Any) -> Any:
        return tuple(map(_sliced, args)), {name: _sliced(value) for name, value in kwargs.items()}

    handle = module.register_forward_pre_hook(first, with_kwargs=True)
    try:
        yield True
    finally:
        handle.remove()


def _tail(model: nn.Module) -> nn.Module | None:
    kind = type(model)
    ours = kind.__module__.startswith("transformers.models.")
    if not ours or not kind.__name__.endswith("ForSequenceClassification"):
        return None
    config: Any = model.config
    if getattr(config, "output_hidden_states", False) or getattr(config, "chunk_size_feed_forward", 0):
        return None  # somebody may read the others, or they go on some at a time
    table, body = architecture_of(model), cast(nn.Module, model.base_model)
    if not table.tail or not all(map(_known, (*model.children(), *body.children()))):
        return None
    *_, (_, last) = blocks(model, table)
    return last.get_submodule(table.tail)


def _known(module: nn.Module) -> bool:
    """A head or a pooler of one's own may read every token."""
    return type(module).__module__.partition(".")[0] in ("torch", "transformers")


def _sliced(value: Any) -> Any:
    return value[:, :1] if isinstance(value, Tensor) and value.dim() == 3 else value
