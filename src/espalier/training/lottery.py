"""Lottery tickets: does a sparse network, trained alone from its first weights, do as well as the dense one?

Iterative magnitude pruning: train, remove a fraction of what is left, set the kept weights back to step
`rewind` of the first training, and train again (Frankle & Carbin 2019, arXiv 1803.03635; rewinding to a later
step: arXiv 1912.05671). With learning-rate rewinding the weights stay, and only the schedule starts again
(arXiv 2003.02389).

A ticket means something only in comparison with its controls: a random mask with as many weights in every
layer, and the same mask on a new initialisation. Nothing here depends on transformers: `train` is yours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import criteria
from ..architectures.site import WeightSite
from ..core.errors import InvalidValueError
from ..core.mask import Mask
from ..selection.scopes import remove_lowest
from .held_mask import HeldMask

State = Mapping[str, Tensor]
# train(model, mask, start, on_step) trains in place under the mask from step `start` to the end and returns a
# result. It calls on_step(step) when `step` steps are done, and with `start` before the first of them.
Train = Callable[[nn.Module, Mask, int, Callable[[int], None]], Any]


@dataclass(frozen=True)
class Ticket:
    """One round: the mask it was trained under, and the result. Round 0 is the dense network."""

    round: int
    mask: Mask
    result: Any


def tickets(
    model: nn.Module,
    sites: Sequence[WeightSite],
    train: Train,
    *,
    rounds: int,
    remove: float = 0.2,
    rewind: int = 0,
    keep_weights: bool = False,
    scope: str = "global",
    snapshot: dict[str, Tensor] | None = None,
) -> Iterator[Ticket]:
    """Yield a ticket per round: after n rounds, (1 − remove)ⁿ of the weights are kept.

    `rewind` is the step that kept weights go back to; with `keep_weights` only the learning rate does. A
    `snapshot` is filled with the state at that step, for controls.
    """
    for name, value, valid, wanted in (
        ("rounds", rounds, rounds >= 1, "at least 1"),
        ("remove", remove, 0 < remove < 1, "a fraction between 0 and 1"),
        ("rewind", rewind, rewind >= 0, "a step of the training"),
    ):
        if not valid:
            raise InvalidValueError(f"`{name}` is {value}; it must be {wanted}", name)
    state: dict[str, Tensor] = {} if snapshot is None else snapshot
    state.clear()  # it may come from another training
    mask, score = Mask.ones(sites), criteria.load("magnitude")

    def take_snapshot(step: int) -> None:
        if step == rewind:
            state.update(copy_state(model))

    result = train(model, mask, 0, take_snapshot)
    if not state:
        raise InvalidValueError(f"the training never reached step {rewind}, the one to rewind to", "rewind")
    yield Ticket(0, mask, result)
    for number in range(1, rounds + 1):
        # A fraction of all weights, not of what rounding left: exact to half a weight in every round.
        removed = 1 - (1 - remove) ** number
        mask = remove_lowest(score(model, sites), removed, scope=scope, mask=mask)
        kept = copy_state(model) if keep_weights else state
        yield Ticket(number, mask, train_control(model, sites, train, mask, kept, rewind))


def train_control(
    model: nn.Module, sites: Sequence[WeightSite], train: Train, mask: Mask, state: State, start: int = 0
) -> Any:
    """Return the result of a mask trained from a state: random, or a ticket's on other weights."""
    model.load_state_dict(state)
    HeldMask(sites, mask)  # sets what it removes to zero
    return train(model, mask, start, lambda step: None)


def random_like(mask: Mask, seed: int) -> Mask:
    """Return a random mask that keeps as many weights in every layer."""
    generator = torch.Generator().manual_seed(seed)
    ranks = {name: torch.randperm(m.numel(), generator=generator).argsort() for name, m in mask.items()}
    return Mask({name: (ranks[name] < m.sum()).view(m.shape) for name, m in mask.items()})


def copy_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of every parameter and buffer."""
    return {name: t.detach().clone() for name, t in model.state_dict().items()}
