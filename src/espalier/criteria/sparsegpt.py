"""SparseGPT: w²/c², c the diagonal of the Cholesky factor of the inverse Hessian of what a matrix writes.

The error that remains when a weight is removed and those to the right of it compensate
(https://arxiv.org/abs/2301.00774). This scores and leaves the weights as they are; `compensate` prunes by it,
block by block, and updates the weights it keeps.

damping   added to the Hessian's diagonal, as a fraction of its mean
"""

from collections.abc import Sequence

from torch import Tensor, nn

from ..architectures.site import WeightSite
from ..engine.hessians import DAMPING, factor, hessians
from . import N_OF_M, Batches, Scores, criterion


@criterion(
    "weights",
    rescored=True,
    scope="layer",
    reads_inputs=True,
    needs_data=True,
    repairs=("layer", N_OF_M),
    unit="squared error of the output",
)
def sparsegpt(
    model: nn.Module, sites: Sequence[WeightSite], batches: Batches, *, damping: float = DAMPING
) -> Scores:
    measured = hessians(model, sites, batches, "sparsegpt")

    def score(site: WeightSite) -> Tensor:
        hessian = measured.pop(site.name)
        worth = factor(hessian, damping).diagonal().square().reciprocal()
        worth[hessian.diagonal() == 0] = 0  # an input that is always zero has no effect
        return site.fold(lambda w, _: w.square() * (worth[:, None] if site.input_axis == 0 else worth))

    return Scores({site.name: score(site) for site in sites})
