"""Work that a pass need not do: blocks that have not changed, and tokens that a classifier does not read.

Greedy pruning runs the same examples hundreds of times, and one cut touches one block. The output of each
block is kept, within a budget of memory, and returned again while nothing up to it has changed: for passes
without gradients the outputs alone, for those with gradients all that the backward pass needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..architectures.sites import blocks
from ..architectures.table import architecture_of

BUDGET = 2**30  # bytes


@dataclass
class _Entry:
    state: object
    out: Any
    note: Any
    size: int


class ActivationCache:
    """The outputs of a model's blocks for each batch of one fixed list.

    budget   bytes to use at most
    graphs   keep the graphs of the outputs too, for passes with gradients
    """

    def __init__(self, budget: int = BUDGET, *, graphs: bool = False):
        self.budget, self.used, self.graphs = budget, 0, graphs
        self.kept: dict[int, list[_Entry]] = {}  # of each batch, one for each block from the first
        self.usable = True  # until a model passes more than one tensor from block to block

    @contextmanager
    def over(
        self,
        blocks: Sequence[nn.Module],
        states: Sequence[object],
        note: Callable[[nn.Module], Any] | None = None,
        recall: Callable[[Any], None] | None = None,
    ) -> Iterator[CachedPass]:
        """Replace the blocks' forwards inside; call `begin(batch)` before each batch.

        `states` are equal while their blocks are. `note(block)` returns what to keep besides a block's
        output, and `recall` is called with it when that block does not run.
        """
        # a hook of a block must run, and what it does is not in an output: dropping tokens, for instance
        hooked = any(block._forward_hooks or block._forward_pre_hooks for block in blocks)
        self.usable = self.usable and len(set(blocks)) == len(blocks) and not hooked
        now = CachedPass(self, states, note, recall)
        # accelerate sets a forward of its own where a model is spread over devices
        before = {block: block.__dict__.get("forward") for block in blocks}
        try:
            for position, block in enumerate(blocks):
                block.forward = now.replacement(position, block)
            yield now
        finally:
            for block, own in before.items():
                block.__dict__.pop("forward", None)
                if own is not None:
                    block.forward = own

    def forget_below(self, batch: int, position: int) -> None:
        """Keep no outputs below a block: what is below it will not change, and nothing but blocks reads them.

        A block whose output is kept does not look at its input, so that any tensor can stand for it.
        """
        kept = self.kept.get(batch, [])
        for entry in kept[:position] if len(kept) > position else ():
            entry.out = kept[position].out
            self.used -= entry.size
            entry.size = 0

    def forget(self, batch: int) -> None:
        """Drop what is kept of a batch."""
        self.used -= sum(entry.size for entry in self.kept.pop(batch, []))

    def clear(self) -> None:
        """Drop everything that is kept."""
        self.kept.clear()
        self.used = 0


@dataclass
class CachedPass:
    """One pass over the batches with one state of the model."""

    cache: ActivationCache
    states: Sequence[object]
    note: Callable[[nn.Module], Any] | None
    recall: Callable[[Any], None] | None
    batch: int | None = None
    start: int = 0
    next: int = 0

    def begin(self, batch: int) -> None:
        """Find the first block that must run: the first whose state is not the one it was kept with."""
        self.batch, self.next = batch, 0
        kept = self.cache.kept.setdefault(batch, []) if self.cache.usable else []
        same = [entry.state == state for entry, state in zip(kept, self.states)]
        self.start = same.index(False) if False in same else len(same)
        self.cache.used -= sum(entry.size for entry in kept[self.start :])
        del kept[self.start :]

    def suspend(self) -> None:
        """Run all blocks and keep nothing, until the next batch begins."""
        self.batch, self.start = None, 0

    @property
    def keeps(self) -> bool:
        """Whether anything of this batch is still needed after this pass."""
        return self.batch is not None and bool(self.cache.kept.get(self.batch))

    def replacement(self, position: int, block: nn.Module) -> Callable[..., Any]:
        """Return a forward that gives the kept output, or runs the block and keeps its output."""
        real = block.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self.batch is None:
                return real(*args, **kwargs)
            if self.cache.usable and position < self.start:
                self.next = position + 1
                entry = self.cache.kept[self.batch][position]
                if self.recall:
                    self.recall(entry.note)
                return entry.out
            count: AbstractContextManager[dict[int, int]] = nullcontext({})
            if self.cache.graphs and self.cache.usable:
                count = _counting_saved(block)
            with count as bytes_of:
                out = real(*args, **kwargs)
            self._keep(position, block, out, bytes_of)
            return out

        return forward

    def _keep(self, position: int, block: nn.Module, out: Any, bytes_of: dict[int, int]) -> None:
        cache = self.cache
        if not cache.usable or self.batch is None:
            return
        tensors = [v for v in out if isinstance(v, Tensor)] if isinstance(out, tuple) else [out]
        if position != self.next or len(tensors) != 1 or not isinstance(tensors[0], Tensor):
            cache.usable = False  # blocks run in another order, or pass more than one tensor on
            cache.clear()
            return
        self.next = position + 1
        kept = cache.kept[self.batch]
        if len(kept) != position or cache.used > cache.budget:
            return
        note = self.note(block) if self.note else None
        for tensor in (*tensors, *_tensors_in(note)):
            _count(tensor, bytes_of)
        size = sum(bytes_of.values())
        if cache.used + size <= cache.budget:
            kept.append(_Entry(self.states[position], out, note, size))
            cache.used += size


def _count(tensor: Tensor, bytes_of: dict[int, int]) -> None:
    storage = tensor.untyped_storage()
    bytes_of.setdefault(storage.data_ptr(), storage.nbytes())  # several views of one are one


def _tensors_in(thing: Any) -> Iterator[Tensor]:
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, (list, tuple, dict)):
        for item in thing.values() if isinstance(thing, dict) else thing:
            yield from _tensors_in(item)


@contextmanager
def _counting_saved(block: nn.Module) -> Iterator[dict[int, int]]:
    """Count {address: bytes} of what autograd saves for the backward pass; weights count nothing."""
    bytes_of = {p.untyped_storage().data_ptr(): 0 for p in block.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        _count(tensor, bytes_of)
        return tensor.detach()  # the tensor itself would be a reference cycle that is never freed

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield bytes_of


@contextmanager
def first_token_only(model: nn.Module) -> Iterator[bool]:
    """Run the end of the last block on the first token alone: the logits, and nothing else, are the same.

    Yields True where the table names the module (`tokenwise_from`) and the model is a classifier of
    transformers' own, whose head reads that token. Otherwise, and where hidden states are returned too,
    nothing happens.
    """
    module = tokenwise_module(model)
    if module is None:
        yield False
        return

    def first(_: nn.Module, args: Any, kwargs: Any) -> Any:
        return tuple(map(_first, args)), {name: _first(value) for name, value in kwargs.items()}

    with module.register_forward_pre_hook(first, with_kwargs=True):
        yield True


def tokenwise_module(model: nn.Module) -> nn.Module | None:
    """Return the module from which on a classifier needs the first token only, if there is one."""
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
    last = [block for _, block in blocks(model, table)][-1:]
    return last[0].get_submodule(table.tokenwise_from) if last else None


def _is_stock(module: nn.Module) -> bool:
    """Return whether the class is not the user's own: such a head or pooler may read every token."""
    return type(module).__module__.partition(".")[0] in ("torch", "transformers")


def _first(value: Any) -> Any:
    return value[:, :1] if isinstance(value, Tensor) and value.dim() == 3 else value
