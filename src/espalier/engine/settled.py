"""Blocks that stay as they are run once: for passes that look only at what is above them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from ..architectures.sites import blocks
from ..architectures.table import architecture_of
from ..core.batches import Batch, model_inputs
from ..core.types import PreTrainedModel
from .cache import ActivationCache
from .passes import block_states

UNKNOWN = -1  # the number of a batch that is none of those given


@contextmanager
def settled_below(
    cache: ActivationCache, model: PreTrainedModel, block: nn.Module | None, batches: Sequence[Batch]
) -> Iterator[None]:
    """Inside, a pass over one of the batches does not run the blocks below `block` that an earlier one ran.

    Of each batch the output of the highest of them is kept in the cache. If one has changed, or is watched by
    a hook, they run again. A decoder reads its encoder, so that both together run as ever.
    """
    found = [one for _, one in blocks(model, architecture_of(model))]
    below = found[: found.index(block)] if block in found else []
    if not below or getattr(model.config, "is_encoder_decoder", False):
        yield
        return
    states = block_states(model, found)[: len(below)]
    numbers = {_identity(model_inputs(batch, labels=False)): number for number, batch in enumerate(batches)}

    def begin(_: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        given = {name: value for name, value in kwargs.items() if name != "labels"}
        number = UNKNOWN if args else numbers.get(_identity(given), UNKNOWN)
        kept = cache.kept.get(number, [])
        same = len(kept) <= len(below) and all(one.state == state for one, state in zip(kept, states))
        if not same or number == UNKNOWN or any(map(_is_watched, below)):
            cache.forget(number)
        else:
            cache.forget_below(number, len(kept) - 1)
        now.begin(number)

    with (
        cache.over(below, states) as now,
        model.register_forward_pre_hook(begin, with_kwargs=True),
    ):
        yield


def _identity(inputs: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Return what is equal for the same tensors alone; the batches hold them, so that no id is used again."""
    return tuple(sorted((name, id(value)) for name, value in inputs.items()))


def _is_watched(block: nn.Module) -> bool:
    return any(module._forward_hooks or module._forward_pre_hooks for module in block.modules())
