"""Wanda: |w|·‖x‖, x being what the weight reads over all real tokens (https://arxiv.org/abs/2306.11695).

Scores compare within an output row, so the scope is "row" unless another is given.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from ..architectures.site import WeightSite
from ..engine.activations import read_inputs
from . import Batches, Scores, criterion


@criterion(
    "weights", rescored=True, scope="row", reads_inputs=True, needs_data=True, unit="weight times input norm"
)
def wanda(model: nn.Module, sites: Sequence[WeightSite], batches: Batches) -> Scores:
    squares = {s.name: s.linear.weight.new_zeros(s.shape[s.input_axis]).double() for s in sites}

    def add(site: WeightSite, x: Tensor) -> None:
        squares[site.name] += x.double().square().sum(0)

    read_inputs(model, sites, batches, add, "wanda")

    def score(site: WeightSite) -> Tensor:
        norm = squares[site.name].sqrt()
        return site.fold(lambda w, _: w.abs() * (norm[:, None] if site.input_axis == 0 else norm).to(w))

    return Scores({site.name: score(site) for site in sites})
