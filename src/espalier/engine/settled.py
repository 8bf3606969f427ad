"""Blocks that stay as they are run once: for passes that look only at what is above them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ..architectures.sites import blocks
from ..architectures.table import architecture_of
from ..core.batches import Batch, model_inputs
from ..core.types import PreTrainedModel
from .cache import ActivationCache
from .passes import block_states


@contextmanager
def settled_below(
    cache: ActivationCache, model: PreTrainedModel, block: nn.Module | None, batches: Sequence[Batch]
) -> Iterator[None]:
    """Inside, a pass over one of the batches does not run the blocks below `block` that an earlier one ran.

    Of each batch the output of the highest of them is kept in the cache. They run again after a change of a
    weight, of an input, of the mode or of autocasting, and where a hook watches them. A decoder reads its
    encoder, so that both together run as ever.
    """
    found = [one for _, one in blocks(model, architecture_of(model))]
    below = found[: found.index(block)] if block in found else []
    if not below or getattr(model.config, "is_encoder_decoder", False):
        yield
        return
    states: list[object] = [None for _ in below]
    numbers = {_identity(model_inputs(batch, labels=False)): number for number, batch in enumerate(batches)}

    def begin(_: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        given = {name: value for name, value in kwargs.items() if name != "labels"}
        number = numbers.get(_identity(given))
        if args or number is None or any(map(_is_watched, below)):
            now.suspend()
            return
        states[:] = [(state, _Inputs(given)) for state in block_states(model, found)[: len(below)]]
        kept = cache.kept.get(number, [])
        if len(kept) > len(below) or any(one.state != state for one, state in zip(kept, states)):
            cache.forget(number)  # what is kept of lower blocks is the output of the highest
        now.begin(number)

    def end(*_: Any) -> None:
        if now.batch is not None:
            cache.forget_below(now.batch, len(cache.kept.get(now.batch, [])) - 1)
        now.suspend()

    with (
        cache.over(below, states) as now,
        model.register_forward_pre_hook(begin, with_kwargs=True),
        model.register_forward_hook(end, always_call=True),
    ):
        yield


class _Inputs:
    """The very tensors of a pass, unchanged since; they are held, so that no id is used again."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, inputs: Mapping[str, Any]):
        self.inputs = dict(inputs)
        tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
        self.versions = {name: 0 if one.is_inference() else one._version for name, one in tensors.items()}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Inputs) or self.versions != other.versions:
            return False
        return _identity(self.inputs) == _identity(other.inputs)


def _identity(inputs: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, id(value)) for name, value in inputs.items()))


def _is_watched(block: nn.Module) -> bool:
    return any(module._forward_hooks or module._forward_pre_hooks for module in block.modules())
