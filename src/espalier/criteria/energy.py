"""Energy: what a unit writes into the residual stream, squared; Wanda's score for heads and neurons.

The mean squares of its inputs over all real tokens, times the squares of the weights that write them back. No
labels and no gradients are needed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..architectures.site import Site, WeightSite, wide
from ..architectures.sites import sites as find_sites
from ..engine.activations import read_inputs
from . import Batches, Scores, criterion


@criterion("heads", "neurons", rescored=True, needs_data=True, unit="squared norm of what is written")
def energy(model: nn.Module, sites: Sequence[Site], batches: Batches) -> Scores:
    matrices = {matrix.linear: matrix for matrix in find_sites(model, "weights")}
    writers = {site.name: matrices[site.module("write")] for site in sites}
    squares = {w.name: torch.zeros(w.shape[w.input_axis], dtype=torch.float64) for w in writers.values()}
    tokens = dict.fromkeys(squares, 0)

    def add(site: WeightSite, x: Tensor) -> None:
        squares[site.name] += x.double().square().sum(0).cpu()
        tokens[site.name] += len(x)

    read_inputs(model, list(writers.values()), batches, add, "energy")

    def score(site: Site) -> Tensor:
        written = wide(site.weight("write").detach()).double().square().sum(2).cpu()  # [units, channels]
        matrix = writers[site.name].name
        return (written * squares[matrix][site.index("write")]).sum(1) / max(1, tokens[matrix])

    return Scores({site.name: score(site) for site in sites})
