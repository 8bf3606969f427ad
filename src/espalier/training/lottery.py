"""Lottery tickets: is there a sparse network that, trained alone from where it began, does as well?

Iterative magnitude pruning: train, close `share` of what is left, put the survivors back to where they were
at step `rewind` of the first training, and train again (Frankle & Carbin 2019, arXiv 1803.03635; rewinding to
a later step: arXiv 1912.05671). With learning-rate rewinding the weights stay, and only the schedule begins
again (arXiv 2003.02389).

A ticket means something only beside its controls: a random mask with as many weights in every layer, and the
same mask on a new initialisation. Nothing here knows transformers: `train` is yours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..core.errors import EspalierError
from ..core.mask import Mask, Scores
from ..selection.scopes import lowest
from .held_mask import Held

State = Mapping[str, Tensor]
Chooser = Callable[..., Mask]


class Train(Protocol):
    """Train the model in place under the mask, from step `start` to the end, and give what came of it.

    It calls `watch(step)` when `step` steps are done, also before the first of all.
    """

    def __call__(self, model: nn.Module, mask: Mask, start: int, watch: Callable[[int], None]) -> Any: ...


@dataclass(frozen=True)
class Ticket:
    """One round: the mask it was trained under, and what came of it. Round 0 is the dense network."""

    round: int
    mask: Mask
    result: Any

    @property
    def kept(self) -> float:
        return self.mask.kept


def tickets(
    model: nn.Module,
    sites: Sequence[Any],
    train: Train,
    *,
    rounds: int,
    share: float = 0.2,
    rewind: int = 0,
    keep_weights: bool = False,
    choose: Chooser = lowest,
    snapshot: dict[str, Tensor] | None = None,
) -> Iterator[Ticket]:
    """Round after round, a ticket with (1 − share)^round of the weights.

    `rewind` is the step that survivors go back to; with `keep_weights` only the learning rate does. A
    `snapshot` that is given is filled with the state at that step, for controls.
    """
    if not 0 < share < 1 or rounds < 1 or rewind < 0:
        raise EspalierError(
            "tickets need at least one round, a share between 0 and 1 and a step to rewind to; "
            f"got {rounds}, {share} and {rewind}"
        )
    kept: dict[str, Tensor] = {} if snapshot is None else snapshot
    kept.clear()  # of another training
    mask = Mask.ones(sites)

    def keep(step: int) -> None:
        if step == rewind:
            kept.update(state_of(model))

    result = train(model, mask, 0, keep)
    if not kept:
        raise EspalierError(f"the training never came to step {rewind}, which is to be rewound to")
    yield Ticket(0, mask, result)
    for number in range(1, rounds + 1):
        # Of the whole, not of what rounding left: the law holds to half a weight in every round.
        mask = choose(magnitudes(sites), (1 - share) ** number, mask=mask)
        place(model, sites, mask, None if keep_weights else kept)
        yield Ticket(number, mask, train(model, mask, rewind, _nothing))


def control(
    model: nn.Module,
    sites: Sequence[Any],
    train: Train,
    mask: Mask,
    state: State,
    start: int = 0,
) -> Any:
    """What comes of a mask from a state: of a random mask, or of a ticket's mask on another beginning."""
    place(model, sites, mask, state)
    return train(model, mask, start, _nothing)


def random_like(mask: Mask, seed: int) -> Mask:
    """Other weights, drawn by a seed, but as many in every layer."""
    dice = torch.Generator().manual_seed(seed)
    out = Mask()
    for name, m in mask.items():
        drawn = torch.zeros(m.numel(), dtype=torch.bool)
        drawn[torch.randperm(m.numel(), generator=dice)[: int(m.sum())]] = True
        out[name] = drawn.view(m.shape)
    return out


def place(model: nn.Module, sites: Sequence[Any], mask: Mask, state: State | None) -> None:
    """Put a state back, or keep the present one, and zero what the mask closes."""
    if state is not None:
        model.load_state_dict(state)
    Held(sites, mask).release()


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer as it is now."""
    return {name: t.detach().clone() for name, t in model.state_dict().items()}


def magnitudes(sites: Sequence[Any]) -> Scores:
    found = {site.name: site.fold(lambda w, _: w.abs()) for site in sites}
    return Scores(found, axes={site.name: site.input_axis for site in sites})


def _nothing(step: int) -> None:
    pass
