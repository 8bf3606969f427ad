"""SparseGPT: w²/c², c the diagonal of the Cholesky factor of the inverse Hessian of what a matrix writes.

The error that remains when a weight goes and those to the right of it make up for it. This scores and leaves
the weights alone; `compensate` prunes by it block by block, and repairs.

damping   added to the Hessian's diagonal, as a fraction of its mean
"""

from ..engine.hessians import DAMPING, factor, hessians
from . import Scores, criterion


@criterion("weights", rescored=True, scope="layer", inputs=True)
def sparsegpt(model, sites, batches, *, damping: float = DAMPING) -> Scores:  # type: ignore[no-untyped-def]
    measured = hessians(model, sites, batches, "sparsegpt")
    scores = Scores()
    for site in sites:
        hessian = measured.pop(site.name)
        worth = factor(hessian, damping).diagonal().square().reciprocal()
        worth[hessian.diagonal() == 0] = 0  # what no token ever fed can go for nothing
        scores[site.name] = site.fold(
            lambda w, _, x=worth, site=site: w.square() * (x[:, None] if site.input_axis == 0 else x)
        )
    return scores
