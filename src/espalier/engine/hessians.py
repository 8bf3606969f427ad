"""The Hessian of a matrix's reconstruction error, ‖(W − W')X‖², which is 2XXᵀ for every one of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.batches import Batches
from ..core.errors import EspalierError
from .activations import read

DAMPING = 0.01  # of the mean diagonal


def hessians(model: Any, sites: Sequence[Any], batches: Batches, by: str) -> dict[str, Tensor]:
    """{site: 2XXᵀ/n}, [inputs, inputs], over the n real tokens it read."""
    total: dict[str, Tensor] = {}
    tokens = dict.fromkeys((site.name for site in sites), 0)
    for site in sites:
        wide = site.fold(lambda w, _: w)
        width = site.shape[site.input_axis]
        total[site.name] = wide.new_zeros(width, width)

    def see(site: Any, x: Tensor) -> None:
        x = x.to(total[site.name].dtype)
        total[site.name].addmm_(x.T, x)
        tokens[site.name] += len(x)

    read(model, sites, batches, see, by)
    return {name: h.mul_(2 / max(tokens[name], 1)) for name, h in total.items()}


def factor(hessian: Tensor, damping: float = DAMPING) -> Tensor:
    """Upper Cholesky factor of the damped inverse; an input that is always zero stands alone in it.

    Its squared diagonal is the diagonal of the inverse of what is left once all earlier inputs are done with.
    """
    h = hessian.clone()
    diagonal = h.diagonal()
    diagonal[diagonal == 0] = 1
    diagonal += damping * diagonal.mean()
    try:
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(h))
        return torch.linalg.cholesky(inverse, upper=True)
    except RuntimeError:  # LinAlgError is one
        raise EspalierError(
            f"the inputs of a matrix of width {len(h)} lie in too few directions to be told apart, even with "
            f"damping {damping}. Give more batches, or more damping: damping={10 * damping:g}"
        ) from None
