"""Slimming: gates learned under an L1 penalty; what a unit's gate is in the end, it is worth.

Network slimming (Liu et al. 2017, arXiv 1708.06519) puts the penalty on the scales of batch norm. No scale of
a transformer belongs to one head or neuron, so here each gets a gate of its own. The weights stay as they
are: the penalty pulls every gate to zero alike, and those stay up that the loss holds up.

strength  of the penalty, beside the mean loss of an example
rate      of Adam on the gates, falling to zero in a straight line
passes    over the batches
"""

import torch

from ..core.batches import model_inputs
from ..core.errors import EspalierError
from ..engine.gates import gated
from . import Scores, criterion


@criterion("heads", "neurons")
def slimming(  # type: ignore[no-untyped-def]
    model, sites, batches, *, strength: float = 1e-3, rate: float = 0.05, passes: int = 5
) -> Scores:
    if not batches:
        raise EspalierError("slimming needs calibration data: give it some batches")
    steps = passes * len(batches)
    with gated(sites) as gates:
        optimiser = torch.optim.Adam(gates.values(), lr=rate)
        for step in range(steps):
            batch = batches[step % len(batches)]
            optimiser.param_groups[0]["lr"] = rate * (1 - step / steps)
            loss = batches.loss(model(**model_inputs(batch)), batch)
            pull = torch.stack([gate.abs().sum() for gate in gates.values()]).sum()
            (loss + strength * pull).backward()
            optimiser.step()
            optimiser.zero_grad()
        return Scores({name: gate.detach().abs() for name, gate in gates.items()})
