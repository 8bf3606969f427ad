"""Passes that begin where the model changed: below the lowest changed block everything is as it was.

Greedy pruning runs the same examples hundreds of times, and one cut touches one block. What each block gave
out is kept, as far as a budget of memory goes, and given out again while nothing up to it has changed: for
passes without gradients the outputs alone, for those with gradients all that their way back needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

BUDGET = 2**30  # bytes
State = Sequence[Any]  # one thing a block, equal while the block is


@dataclass
class _Kept:
    state: Any
    out: Any
    note: Any
    size: int


class Replay:
    """Remembers what the blocks of a model give out for each batch of one fixed list."""

    def __init__(self, budget: int = BUDGET, *, graphs: bool = False):
        self.budget, self.used, self.graphs = budget, 0, graphs
        self.kept: dict[int, list[_Kept]] = {}  # of each batch, one for each block from the first
        self.sound = True  # until a model hands more than one tensor from block to block

    @contextmanager
    def over(
        self,
        blocks: Sequence[nn.Module],
        state: State,
        note: Callable[[nn.Module], Any] | None = None,
        recall: Callable[[Any], None] | None = None,
    ) -> Iterator[_Pass]:
        """Replaces the blocks' forwards inside; call `begin(batch)` before each batch.

        `note(block)` is asked what to keep besides a block's output, and `recall` told it when that block
        does not run.
        """
        now = _Pass(self, list(blocks), list(state), note, recall)
        # accelerate puts a forward of its own there, where a model is spread over devices
        before = {block: block.__dict__.get("forward") for block in blocks}
        try:
            for place, block in enumerate(blocks):
                block.forward = now.stand_in(place, block)
            yield now
        finally:
            for block, own in before.items():
                block.__dict__.pop("forward", None)
                if own is not None:
                    block.forward = own

    def forget(self) -> None:
        self.kept.clear()
        self.used = 0


class _Pass:
    """One walk over the batches with one state of the model."""

    def __init__(
        self,
        memory: Replay,
        blocks: list[nn.Module],
        state: list[Any],
        note: Callable[[nn.Module], Any] | None,
        recall: Callable[[Any], None] | None,
    ):
        self.memory, self.state, self.note, self.recall = memory, state, note, recall
        usual = len({id(block) for block in blocks}) == len(blocks)
        memory.sound = memory.sound and usual
        self.batch = self.start = self.next = 0

    def begin(self, batch: int) -> None:
        """The first block that must run is the first whose state is not the one it was kept with."""
        self.batch, self.next = batch, 0
        kept = self.memory.kept.setdefault(batch, []) if self.memory.sound else []
        same = [a.state == b for a, b in zip(kept, self.state)]
        self.start = same.index(False) if False in same else len(same)
        self.memory.used -= sum(one.size for one in kept[self.start :])
        del kept[self.start :]

    @property
    def keeps(self) -> bool:
        """Whether anything of this batch is still needed after this pass."""
        return bool(self.memory.kept.get(self.batch))

    def stand_in(self, place: int, block: nn.Module) -> Any:
        real = block.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self.memory.sound and place < self.start:
                self.next = place + 1
                kept = self.memory.kept[self.batch][place]
                if self.recall:
                    self.recall(kept.note)
                return kept.out
            if self.memory.graphs and self.memory.sound:
                with _saving(block) as bytes_of:
                    out = real(*args, **kwargs)
                self._keep(place, block, out, bytes_of)
            else:
                out = real(*args, **kwargs)
                self._keep(place, block, out, {})
            return out

        return forward

    def _keep(self, place: int, block: nn.Module, out: Any, bytes_of: dict[int, int]) -> None:
        memory = self.memory
        if not memory.sound:
            return
        tensors = [v for v in out if isinstance(v, Tensor)] if isinstance(out, tuple) else [out]
        if place != self.next or len(tensors) != 1 or not isinstance(tensors[0], Tensor):
            memory.sound = False  # blocks run in another order, or hand more than one tensor on
            memory.forget()
            return
        self.next = place + 1
        kept = memory.kept[self.batch]
        if len(kept) != place or memory.used > memory.budget:
            return
        note = self.note(block) if self.note else None
        for tensor in (*tensors, *_tensors_in(note)):
            _weigh(tensor, bytes_of)
        size = sum(bytes_of.values())
        if memory.used + size <= memory.budget:
            kept.append(_Kept(self.state[place], out, note, size))
            memory.used += size


def _weigh(tensor: Tensor, bytes_of: dict[int, int]) -> None:
    storage = tensor.untyped_storage()
    bytes_of.setdefault(storage.data_ptr(), storage.nbytes())  # several views of one are one


def _tensors_in(thing: Any) -> Iterator[Tensor]:
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, (list, tuple, dict)):
        for part in thing.values() if isinstance(thing, dict) else thing:
            yield from _tensors_in(part)


@contextmanager
def _saving(block: nn.Module) -> Iterator[dict[int, int]]:
    """{place in memory: bytes} of what autograd keeps for the way back; the weights weigh nothing."""
    bytes_of = {p.untyped_storage().data_ptr(): 0 for p in block.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        _weigh(tensor, bytes_of)
        return tensor.detach()  # itself would be a circle that nobody frees

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield bytes_of
