"""One pass forward and one back over a batch, through activations alone: no gradient of a weight is computed.

Criteria that rank by gradients say which modules they watch and on which side, and get what each read and
the gradient there. Whatever can be left out of such a pass is left out here, for all of them: blocks below
the lowest change (see `replay`), tokens that the classifier never reads, layers below the lowest watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batches import Batches, model_inputs
from .first_token import first_token_only

Use = tuple[Tensor, Tensor]  # what a module read, and the gradient of what was watched
Calls = dict[nn.Module, list[Use]]
Objective = Callable[[Any, Mapping[str, Any]], Tensor]  # of what the model gives out, and the batch


def sweep(
    model: nn.Module,
    sites: Sequence[Any],
    modules: Sequence[nn.Module],
    batches: Batches,
    number: int,
    objective: Objective,
    *,
    side: str = "output",
) -> Calls:
    """{module: [(input, gradient of its `side`), one for each time it ran]} for one batch.

    `objective` turns what the model gives out into the number that is differentiated.
    """
    with (
        watching(modules, side) as seen,
        first_token_only(model) as shortened,
        _replayed(model, sites, batches, number, seen, (side, shortened)) as kept,
        torch.enable_grad(),
    ):
        out = model(**model_inputs(batches[number]))
        value = objective(out, batches[number])
    if batches.hear:
        batches.hear(number, out)
    watched = [(module, x, y) for module, calls in seen.items() for x, y in calls]
    if not watched:
        return seen
    grads = torch.autograd.grad(value, [y for _, _, y in watched], allow_unused=True, retain_graph=kept())
    found: Calls = {module: [] for module in seen}
    for (module, x, y), grad in zip(watched, grads):
        found[module].append((x.detach(), torch.zeros_like(y) if grad is None else grad))
    return found


@contextmanager
def watching(modules: Sequence[nn.Module], side: str = "output") -> Iterator[Calls]:
    """What goes into each module, and what is watched; that takes gradients even if no weight does."""
    seen: Calls = {module: [] for module in dict.fromkeys(modules)}

    def after(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        if out.requires_grad:
            seen[module].append((args[0].detach(), out))
            return out
        out = out.detach().requires_grad_()  # below it nothing is differentiated at all
        seen[module].append((args[0].detach(), out))
        return out.clone()  # the model may write into what it got (Wav2Vec2 does)

    def before(module: nn.Module, args: Any) -> Any:
        x = args[0]
        # A tensor of its own: its gradient is of this use alone, whoever else reads the same numbers.
        x = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
        seen[module].append((x, x))
        return (x, *args[1:])

    handles = [
        m.register_forward_pre_hook(before) if side == "input" else m.register_forward_hook(after)
        for m in seen
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _replayed(
    model: nn.Module,
    sites: Sequence[Any],
    batches: Batches,
    number: int,
    seen: Calls,
    how: Any,
) -> Iterator[Callable[[], bool]]:
    """Blocks that are as they were do not run again; yields whether their way back must stay."""
    memory = batches.memory
    if memory is None or not memory.sound or any(site.uses > 1 for site in sites):
        yield lambda: False
        return
    blocks = list(dict.fromkeys(site.block for site in sites))
    device = next(model.parameters()).device.type
    rounded = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    states = _states(model, blocks, list(seen), (*how, rounded))

    def note(block: nn.Module) -> Calls:
        return {module: list(seen[module]) for module in block.modules() if seen.get(module)}

    with memory.over(blocks, states, note, seen.update) as now:
        now.begin(number)
        yield lambda: now.keeps


class _State:
    """A block as it is now: the very same parameters, unchanged since, watched alike, no gate on them."""

    def __init__(self, parameters: Sequence[Tensor], how: Any, gates: bool):
        self.parameters = [(p, p._version) for p in parameters]
        self.how, self.gates = how, gates

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _State) or self.how != other.how or self.gates or other.gates:
            return False
        mine, theirs = self.parameters, other.parameters
        return len(mine) == len(theirs) and all(
            a is b and one == two for (a, one), (b, two) in zip(mine, theirs)
        )

    __hash__ = None  # type: ignore[assignment]


def _states(
    model: nn.Module, blocks: Sequence[nn.Module], watched: Sequence[nn.Module], how: Any
) -> list[_State]:
    """Of each block; whatever is outside of them counts to the first."""
    own = [list(block.parameters()) for block in blocks]
    inside = {id(p) for each in own for p in each}
    own[0] = [*own[0], *(p for p in model.parameters() if id(p) not in inside)]
    states = []
    for each, block in zip(own, blocks):
        inner = set(block.modules())
        here = [module for module in watched if module in inner]
        states.append(_State(each, (here, how), gates=any(map(_gated, inner))))
    return states


def _gated(module: nn.Module) -> bool:
    return any(getattr(hook, "is_gate", False) for hook in module._forward_pre_hooks.values())
