"""Passes that begin where the model changed: below the lowest changed block everything is as it was.

Greedy pruning measures the same examples hundreds of times, and one cut touches one block. What each block
gave out is kept, as far as a budget of memory goes, and given out again while nothing up to it has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

BUDGET = 2**30  # bytes
State = Sequence[Any]  # one thing a block, equal while the block is


class Replay:
    """Remembers what the blocks of a model give out for each batch of one fixed list."""

    def __init__(self, budget: int = BUDGET):
        self.budget, self.used = budget, 0
        self.kept: dict[
            int, list[tuple[Any, Any]]
        ] = {}  # batch -> [(state of the block, its output)]
        self.sound = (
            True  # until a model turns out to pass more than one tensor from block to block
        )

    @contextmanager
    def over(self, blocks: Sequence[nn.Module], state: State) -> Iterator[_Pass]:
        """Replaces the blocks' forwards inside; call `begin(batch)` before each batch."""
        now = _Pass(self, list(blocks), list(state))
        try:
            for place, block in enumerate(blocks):
                block.forward = now.stand_in(place, block.forward)
            yield now
        finally:
            for block in blocks:
                block.__dict__.pop("forward", None)


class _Pass:
    """One walk over the batches with one state of the model."""

    def __init__(self, memory: Replay, blocks: list[nn.Module], state: list[Any]):
        self.memory, self.state = memory, state
        usual = len({id(block) for block in blocks}) == len(blocks)
        memory.sound = memory.sound and usual
        self.batch = self.start = self.next = 0

    def begin(self, batch: int) -> None:
        """The first block that must run is the first whose state is not the one it was kept with."""
        self.batch, self.next = batch, 0
        kept = self.memory.kept.setdefault(batch, []) if self.memory.sound else []
        same = [a == b for (a, _), b in zip(kept, self.state)]
        self.start = same.index(False) if False in same else len(same)
        self._forget(kept)

    def stand_in(self, place: int, real: Any) -> Any:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if self.memory.sound and place < self.start:
                self.next = place + 1
                return self.memory.kept[self.batch][place][1]
            out = real(*args, **kwargs)
            self._keep(place, out)
            return out

        return forward

    def _keep(self, place: int, out: Any) -> None:
        memory = self.memory
        if not memory.sound:
            return
        tensors = [v for v in out if isinstance(v, Tensor)] if isinstance(out, tuple) else [out]
        if place != self.next or len(tensors) != 1 or not isinstance(tensors[0], Tensor):
            memory.sound = False  # blocks run in another order, or hand more than one tensor on
            memory.kept.clear()
            return
        self.next = place + 1
        kept = memory.kept[self.batch]
        size = tensors[0].numel() * tensors[0].element_size()
        if len(kept) == place and memory.used + size <= memory.budget:
            kept.append((self.state[place], out))
            memory.used += size

    def _forget(self, kept: list[tuple[Any, Any]]) -> None:
        for _, out in kept[self.start :]:
            tensor = out if isinstance(out, Tensor) else out[0]
            self.memory.used -= tensor.numel() * tensor.element_size()
        del kept[self.start :]
