"""Skip the work on tokens that a classifier does not read."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor, nn

from ..architectures.registry import architecture_of
from ..architectures.sites import blocks


@contextmanager
def first_token_only(model: nn.Module) -> Iterator[bool]:
    """Run the end of the last block on the first token alone: the logits, and nothing else, are the same.

    Yields True where the table names the module (`tokenwise_from`) and the model is a classifier of
    transformers' own, whose head reads that token. Otherwise, and where hidden states are returned too,
    nothing happens.
    """
    module = _tokenwise_module(model)
    if module is None:
        yield False
        return

    def first(_: nn.Module, args: Any, kwargs: Any) -> Any:
        return tuple(map(_first, args)), {name: _first(value) for name, value in kwargs.items()}

    with module.register_forward_pre_hook(first, with_kwargs=True):
        yield True


def _tokenwise_module(model: nn.Module) -> nn.Module | None:
    own = type(model)
    stock = own.__module__.startswith("transformers.models.")
    if not stock or not own.__name__.endswith("ForSequenceClassification"):
        return None
    config: Any = model.config
    if getattr(config, "output_hidden_states", False) or getattr(config, "chunk_size_feed_forward", 0):
        return None  # the other tokens may be read, or are computed in chunks
    table, body = architecture_of(model), cast(nn.Module, model.base_model)
    if not table.tokenwise_from or not all(map(_is_stock, (*model.children(), *body.children()))):
        return None
    *_, (_, last) = blocks(model, table)
    return last.get_submodule(table.tokenwise_from)


def _is_stock(module: nn.Module) -> bool:
    """Return whether the class is not the user's own: such a head or pooler may read every token."""
    return type(module).__module__.partition(".")[0] in ("torch", "transformers")


def _first(value: Any) -> Any:
    return value[:, :1] if isinstance(value, Tensor) and value.dim() == 3 else value
