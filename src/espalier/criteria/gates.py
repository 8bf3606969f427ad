"""Gates: hard-concrete gates learned on frozen weights; the score is log α (https://arxiv.org/abs/2110.03252).

This shows which units the loss asks for first. The method itself learns gates and weights together and closes
gates meanwhile: `espalier.training.Gates`, which prunes wherever `epochs` are given.

init      log α at the start; 2 opens a gate seven times of eight
gate_lr   of Adam on log α, falling linearly to zero
passes    over the batches, one step for each batch
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor, nn

from ..architectures.site import Site
from ..core.batches import model_inputs
from ..engine.gates import multiplied
from ..engine.hard_concrete import sample, scale_for
from . import Batches, Scores, criterion


@criterion(
    "heads",
    "neurons",
    needs_data=True,
    needs_labels=True,
    learned="Gates",
    batch_invariant=False,
    idle="any",
    unit="log α",
)
def gates(
    model: nn.Module,
    sites: Sequence[Site],
    batches: Batches,
    *,
    init: float = 2.0,
    gate_lr: float = 0.1,
    passes: int = 5,
) -> Scores:
    dtype = torch.promote_types(sites[0].module("write").weight.dtype, torch.float32)
    device = sites[0].module("write").weight.device
    learned = {
        s.name: torch.full((s.units,), init, dtype=dtype, device=device, requires_grad=True) for s in sites
    }

    def draw(gate: Tensor) -> Tensor:
        drawn = sample(gate)
        return drawn * scale_for(drawn)

    steps = passes * len(batches)
    devices = [device] if device.type == "cuda" else []
    with ExitStack() as inside:
        inside.enter_context(torch.random.fork_rng(devices))
        torch.manual_seed(0)  # scores are the same in every call
        for site in sites:
            inside.enter_context(multiplied(site, partial(draw, learned[site.name])))
        optimiser = torch.optim.Adam(learned.values(), lr=gate_lr)
        for step in range(steps):
            batch = batches[step % len(batches)]
            optimiser.param_groups[0]["lr"] = gate_lr * (1 - step / steps)
            batches.loss(model(**model_inputs(batch)), batch).backward()
            optimiser.step()
            optimiser.zero_grad()
    return Scores({name: gate.detach() for name, gate in learned.items()})
