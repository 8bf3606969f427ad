"""The Hessian of a matrix's reconstruction error, ‖(W − W')X‖², which is 2XXᵀ for every one of its rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..architectures.site import WeightSite
from ..core.batches import Batches
from ..core.errors import DataError
from ..core.types import PreTrainedModel
from .activations import read_inputs

DAMPING = 0.01  # of the mean diagonal
BLOCK = 192  # columns of products that are computed together


def hessians(
    model: PreTrainedModel, sites: Sequence[WeightSite], batches: Batches, method: str
) -> dict[str, Tensor]:
    """Return {site: 2XXᵀ/n}, [inputs, inputs], over the n real tokens it read."""
    total = {s.name: s.fold(lambda w, _: w).new_zeros((s.shape[s.input_axis],) * 2) for s in sites}
    tokens = dict.fromkeys(total, 0)

    def see(site: WeightSite, x: Tensor) -> None:
        x = x.to(total[site.name].dtype)
        add_products(total[site.name], x)
        tokens[site.name] += len(x)

    read_inputs(model, sites, batches, see, method)
    return {name: mirrored(h).mul_(2 / max(tokens[name], 1)) for name, h in total.items()}


def add_products(total: Tensor, x: Tensor) -> None:
    """Add x.T @ x to the lower blocks of a matrix; those above the diagonal are left to `mirrored`."""
    with torch.autocast(total.device.type, enabled=False):  # sums of 16 bits would not be positive definite
        for start in range(0, len(total), BLOCK):
            part = slice(start, start + BLOCK)
            if total.dtype == torch.float32:
                total[start:, part] += x[:, start:].T @ x[:, part]
            else:
                total[start:, part].addmm_(x[:, start:].T, x[:, part])


def mirrored(total: Tensor) -> Tensor:
    """Return a matrix whose upper triangle is that below the diagonal."""
    lower = total.tril()
    return lower + lower.tril(-1).T


def factor(hessian: Tensor, damping: float = DAMPING) -> Tensor:
    """Return the upper Cholesky factor of the damped inverse; an input that is always zero is independent.

    Its squared diagonal is the diagonal of the inverse that is left once all earlier inputs are eliminated.
    """
    h = hessian.clone()
    diagonal = h.diagonal()
    diagonal[diagonal == 0] = 1
    diagonal += damping * diagonal.mean()
    try:
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(h))
        return torch.linalg.cholesky(inverse, upper=True)
    except RuntimeError:  # LinAlgError is one
        raise DataError(
            f"the Hessian of a matrix with {len(h)} inputs is singular, even with damping {damping}: there "
            f"are too few different tokens. Use more batches, or more damping: damping={10 * damping:g}"
        ) from None
