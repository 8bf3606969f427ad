"""Passes of a model: the mode it runs in, another forward for a while, and a backward pass for gradients.

The backward pass goes through activations alone: no weight gradient is computed. Criteria that rank by
gradients name the modules they watch and on which side, and get what each read and the gradient there. What
such a pass does not need is left out for all of them: blocks below the lowest change (see cache.py), tokens
that the classifier never reads, layers below the lowest watched one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..architectures.site import Site
from ..core.batches import Batches, Loss, model_inputs
from .cache import ActivationCache, first_token_only

Use = tuple[Tensor, Tensor]  # what a module read, and the gradient of what was watched
Calls = dict[nn.Module, list[Use]]
Side = Literal["input", "output"]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to eval() inside; restore the mode of every module."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def frozen_eval(model: nn.Module) -> Iterator[None]:
    """Switch to eval() and freeze all weights inside; restore modes, requires_grad and gradients."""
    before = [(p, p.requires_grad, p.grad) for p in model.parameters()]
    for p, _, _ in before:
        p.requires_grad_(False)
        p.grad = None
    try:
        with evaluating(model):
            yield
    finally:
        for p, requires_grad, grad in before:
            p.requires_grad_(requires_grad)
            p.grad = grad


@contextmanager
def other_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Call `forward` instead of the module's own inside; one that the instance had before is restored."""
    before = module.__dict__.get("forward")  # accelerate sets one where a model is spread over devices
    module.forward = forward
    try:
        yield
    finally:
        module.__dict__.pop("forward", None)
        if before is not None:
            module.forward = before


def run_backward(
    model: nn.Module,
    sites: Sequence[Site],
    modules: Sequence[nn.Module],
    batches: Batches,
    number: int,
    objective: Loss,
    *,
    side: Side = "output",
) -> Calls:
    """Return {module: [(input, gradient of its `side`), one for each time it ran]} for one batch.

    `objective` turns the model's output into the number that is differentiated.
    """
    (found,) = backward_passes(model, sites, modules, batches, number, [objective], side=side)
    return found


def backward_passes(
    model: nn.Module,
    sites: Sequence[Site],
    modules: Sequence[nn.Module],
    batches: Batches,
    number: int,
    objectives: Sequence[Loss],
    *,
    side: Side = "output",
) -> Iterator[Calls]:
    """Yield what `run_backward` returns for each of several objectives, after one pass forward."""
    with (
        watching(modules, side) as seen,
        first_token_only(model) as shortened,
        _cached(model, sites, batches, number, seen, (side, shortened)) as graph_is_cached,
        torch.enable_grad(),
    ):
        out = model(**model_inputs(batches[number]))
    if batches.on_output:
        batches.on_output(number, out)
    watched = [(module, x, y) for module, calls in seen.items() for x, y in calls]
    for place, objective in enumerate(objectives, 1):
        with torch.enable_grad():
            value = objective(out, batches[number])
        again = place < len(objectives) or graph_is_cached()
        outputs = [y for _, _, y in watched]
        grads = torch.autograd.grad(value, outputs, allow_unused=True, retain_graph=again) if watched else ()
        found: Calls = {module: [] for module in seen}
        for (module, x, y), grad in zip(watched, grads):
            found[module].append((x.detach(), torch.zeros_like(y) if grad is None else grad))
        yield found


@contextmanager
def watching(modules: Sequence[nn.Module], side: Side = "output") -> Iterator[Calls]:
    """Record each module's input and the watched tensor, which takes gradients even if no weight does."""
    seen: Calls = {module: [] for module in dict.fromkeys(modules)}

    def after(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        if out.requires_grad:
            seen[module].append((args[0].detach(), out))
            return out
        out = out.detach().requires_grad_()  # below it nothing is differentiated at all
        seen[module].append((args[0].detach(), out))
        return out.clone()  # the model may change it in place (Wav2Vec2 does)

    def before(module: nn.Module, args: Any) -> Any:
        x = args[0]
        # A tensor of its own: its gradient is of this use alone, even if others read the same numbers.
        x = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
        seen[module].append((x, x))
        return (x, *args[1:])

    with ExitStack() as hooks:
        for m in seen:
            hook = m.register_forward_pre_hook(before) if side == "input" else m.register_forward_hook(after)
            hooks.enter_context(hook)
        yield seen


@contextmanager
def _cached(
    model: nn.Module, sites: Sequence[Site], batches: Batches, number: int, seen: Calls, setup: Any
) -> Iterator[Callable[[], bool]]:
    """Skip blocks that have not changed; yields whether the graph is needed after this pass."""
    cache = batches.cache
    if not isinstance(cache, ActivationCache) or not cache.usable or any(site.uses > 1 for site in sites):
        yield lambda: False
        return
    blocks = list(dict.fromkeys(site.block for site in sites))
    states = block_states(model, blocks, list(seen), setup)

    def note(block: nn.Module) -> Calls:
        return {module: list(seen[module]) for module in block.modules() if seen.get(module)}

    with cache.over(blocks, states, note, seen.update) as now:
        now.begin(number)
        yield lambda: now.keeps


class BlockState:
    """A block as it is now. Equal while its parameters are the same and unchanged, without gates."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, parameters: Sequence[Tensor], setup: Any, gates: bool):
        self.parameters, self.setup, self.gates = (
            parameters,
            setup,
            gates,
        )  # held, so that no id is used again
        self.versions = [(id(p), p._version) for p in parameters]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockState) or self.gates or other.gates:
            return False
        return self.setup == other.setup and self.versions == other.versions


def block_states(
    model: nn.Module, blocks: Sequence[nn.Module], watched: Sequence[nn.Module] = (), setup: Any = ()
) -> list[BlockState]:
    """Return the state of each block; parameters outside of all blocks count to the first."""
    device = next(model.parameters()).device.type
    rounded = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    own = [list(block.parameters()) for block in blocks]
    inside = {id(p) for each in own for p in each}
    own[0] = [*own[0], *(p for p in model.parameters() if id(p) not in inside)]
    states = []
    for each, block in zip(own, blocks):
        inner = set(block.modules())
        here = [module for module in watched if module in inner]
        mode = any(module.training for module in inner)
        states.append(BlockState(each, (here, setup, rounded, mode), gates=any(map(_has_gate, inner))))
    return states


def _has_gate(module: nn.Module) -> bool:
    return any(getattr(hook, "is_gate", False) for hook in module._forward_pre_hooks.values())
