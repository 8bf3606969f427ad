"""Wanda: |w|·‖x‖, x being what the weight reads over all real tokens (https://arxiv.org/abs/2306.11695).

Scores compare within an output row, so the scope is "row" unless another is given. Of a head or a neuron, the
sum of its squares over all weights that write it back: the energy of what it writes. No labels are needed.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from ..architectures.site import AnySite, Site, WeightSite, wide
from ..architectures.sites import sites as find_sites
from ..engine.activations import read_inputs
from . import Batches, Scores, criterion


@criterion(
    *("heads", "neurons", "weights"),
    rescored=True,
    scope="row",
    reads_inputs=True,
    needs_data=True,
    unit="weight times input norm",
)
def wanda(model: nn.Module, sites: Sequence[AnySite], batches: Batches) -> Scores:
    matrices = {matrix.linear: matrix for matrix in find_sites(model, "weights")}
    read = {site.name: site if isinstance(site, WeightSite) else matrices[_writer(site)] for site in sites}
    squares = {m.name: m.linear.weight.new_zeros(m.shape[m.input_axis]).double() for m in read.values()}

    def add(site: WeightSite, x: Tensor) -> None:
        squares[site.name] += x.double().square().sum(0)

    read_inputs(model, list(read.values()), batches, add, "wanda")

    def score(site: AnySite) -> Tensor:
        square = squares[read[site.name].name]
        if isinstance(site, Site):
            written = wide(site.weight("write").detach()).double().square().sum(2)  # [units, channels]
            return (written * square[site.index("write").to(square.device)]).sum(1)
        norm, along = square.sqrt(), read[site.name].input_axis
        return site.fold(lambda w, _: w.abs() * (norm[:, None] if along == 0 else norm).to(w))

    return Scores({site.name: score(site) for site in sites})


def _writer(site: AnySite) -> nn.Module:
    assert isinstance(site, Site)
    writer: nn.Module = site.module("write")
    return writer
