"""Slimming: gates learned under an L1 penalty; the score is the size of a unit's gate in the end.

Network slimming (Liu et al. 2017, arXiv 1708.06519) puts the penalty on the scales of batch norm. No scale of
a transformer belongs to one head or neuron, so here each gets a gate of its own. The weights are frozen: the
penalty pulls every gate to zero alike, and the loss holds up those it needs.

strength  of the penalty, added to the mean loss of an example
lr        of Adam on the gates, falling linearly to zero
passes    over the batches, one step for each batch
"""

from collections.abc import Sequence

import torch
from torch import nn

from ..architectures.site import Site
from ..core.batches import model_inputs
from ..engine.gates import gated
from . import Batches, Scores, criterion


@criterion(
    "heads",
    "neurons",
    "slots",
    needs_data=True,
    needs_labels=True,
    batch_invariant=False,
    idle="any",
    unit="gate",
)
def slimming(
    model: nn.Module,
    sites: Sequence[Site],
    batches: Batches,
    *,
    strength: float = 1e-3,
    lr: float = 0.05,
    passes: int = 5,
) -> Scores:
    steps = passes * len(batches)
    with gated(sites) as gates:
        optimiser = torch.optim.Adam(gates.values(), lr=lr)
        for step in range(steps):
            batch = batches[step % len(batches)]
            optimiser.param_groups[0]["lr"] = lr * (1 - step / steps)
            loss = batches.loss(model(**model_inputs(batch)), batch)
            penalty = torch.stack([gate.abs().sum() for gate in gates.values()]).sum()
            (loss + strength * penalty).backward()
            optimiser.step()
            optimiser.zero_grad()
        return Scores({name: gate.detach().abs() for name, gate in gates.items()})
