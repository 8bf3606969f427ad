"""The residual stream after a sublayer: the sum that its writer's output ends in, whatever the architecture.

No table says where a model adds. The additions themselves are watched: the output of a writer is followed
through them until anything else reads the sum, such as a norm or the next block. Where a norm or a scale
comes between a writer and the addition, the trail ends at the writer's own output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..core.batches import Batch, model_inputs
from .passes import other_forward

ADDITIONS = (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor)
Memory = tuple[int, int]


@dataclass
class Write:
    """One use of a writer: what it read, and the stream after it, in the shape of what it wrote."""

    read: Tensor
    stream: Tensor
    added: bool = False  # if nothing was added, the stream is the writer's own output
    done: bool = False


Writes = dict[nn.Module, list[Write]]


def follow_writers(
    model: nn.Module,
    writers: Sequence[nn.Module],
    batch: Batch,
    uses: int | None = None,
    before: nn.Module | None = None,
) -> Writes:
    """Run a batch and return every use of each writer; the pass ends after `uses` of each, if given.

    With `before`, the block after theirs, it ends there at the earliest: what is below has run to its end.
    """
    labels = bool(getattr(model.config, "is_encoder_decoder", False))  # a decoder may read them
    trail = _Trail(writers, uses)
    with ExitStack() as hooks:
        if before is not None:
            hooks.enter_context(trail.ending_at(before))
        for writer in writers:
            hooks.enter_context(writer.register_forward_hook(trail.begin))
        with torch.no_grad(), suppress(_KnownError), trail:
            model(**model_inputs(batch, labels=labels))
    return trail.writes


class _KnownError(Exception):
    """Every stream that was asked for is known."""


class _Trail(TorchDispatchMode):
    """Follow the outputs of writers through additions."""

    def __init__(self, writers: Sequence[nn.Module], uses: int | None):
        super().__init__()
        self.writes: Writes = {writer: [] for writer in writers}
        self.uses = uses
        self.open: dict[Memory, list[Write]] = {}  # the streams that only additions have read so far
        self.waiting = False  # for a module to begin before the pass ends

    @contextmanager
    def ending_at(self, module: nn.Module) -> Iterator[None]:
        """End the pass where the module would run, or after it. Not by a hook, which the cache respects."""
        real, self.waiting = module.forward, True

        def forward(*args: Any, **kwargs: Any) -> Any:
            self.waiting = False
            self.end_if_known()
            return real(*args, **kwargs)

        with other_forward(module, forward):
            yield

    def begin(self, writer: nn.Module, args: Any, out: Tensor) -> None:
        write = Write(args[0], out)
        self.writes[writer].append(write)
        self.open[_memory(out)] = [write]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.open:
            return func(*args, **kwargs)
        read = {_memory(x): x for x in _tensors((args, list(kwargs.values()))) if _memory(x) in self.open}
        if not read:
            return func(*args, **kwargs)
        follows = func in ADDITIONS and kwargs.get("alpha", 1) == 1
        if not follows and not getattr(func, "is_view", False):
            self.close(read)
        out = func(*args, **kwargs)
        same_size = isinstance(out, Tensor) and all(out.numel() == x.numel() for x in read.values())
        if follows and same_size:
            writes = [write for memory in read for write in self.open.pop(memory)]
            for write in writes:
                write.stream, write.added = out.view(write.stream.shape), True
            self.open[_memory(out)] = writes
        elif not same_size:  # a part of the stream is read
            self.close({memory: x for memory, x in read.items() if memory in self.open})
        return out

    def close(self, read: Mapping[Memory, Tensor]) -> None:
        for memory in read:
            for write in self.open.pop(memory):
                write.stream, write.done = write.stream.clone(), True  # later steps may change it in place
        self.end_if_known()

    def end_if_known(self) -> None:
        found = self.writes.values()
        known = self.uses and all(len(each) >= self.uses and all(w.done for w in each) for each in found)
        if known and not self.waiting:
            raise _KnownError


def _memory(tensor: Tensor) -> Memory:
    return tensor.untyped_storage().data_ptr(), tensor.numel()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
