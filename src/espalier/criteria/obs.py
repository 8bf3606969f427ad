"""OBS: how far the predictions move by what the other units of the sublayer cannot make up for.

Repair refits the columns that stay, so that only the part of a unit counts that they do not predict: what its
writer reads of it, minus the best linear prediction from the sublayer's other units on the same tokens. Of
that part the gate's squared gradient is taken, as `kl` does of the whole: of the logits, each class weighted
by its probability. It is the score of the optimal brain surgeon (Hassibi & Stork 1992) for whole units,
weighted by what the model is for. No labels are needed; where every token has a prediction of its own the
loss is taken, which knows which tokens count.

damping       added to the diagonal of the products of inputs, relative to its mean
temperature   by which the logits are divided: a model is surer of the examples that it was trained on than of
              others, and a sure prediction hardly moves
classes       of more than so many the labels are drawn, `draws` for each example
labels        take the loss of the labels instead, as `fisher` does
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..architectures.site import Site
from ..architectures.sites import sites as find_sites
from ..core.errors import DataError
from ..engine.gate_gradients import gate_gradients
from ..engine.hessians import hessians
from . import Batches, Scores, criterion
from ._predictions import count_outputs, prediction_losses


@criterion(
    "heads",
    "neurons",
    rescored=True,
    needs_data=True,
    unit="change of the predictions by what is not predicted",
)
def obs(
    model: nn.Module,
    sites: Sequence[Site],
    batches: Batches,
    *,
    damping: float = 0.1,
    temperature: float = 4.0,
    classes: int = 8,
    draws: int = 4,
    labels: bool = False,
) -> Scores:
    count, by_token = (0, True) if labels else count_outputs(model, batches)
    losses = [] if by_token else prediction_losses(count, batches, classes, draws, temperature)
    matrices = {matrix.linear: matrix for matrix in find_sites(model, "weights")}
    writers = {site.name: matrices[site.module("write")] for site in sites if site.units}
    products = hessians(model, list(writers.values()), batches, "obs")
    rests = {
        site.name: unpredicted(products.pop(writers[site.name].name), site.index("write"), damping)
        for site in sites
        if site.units
    }
    return Scores(gate_gradients(model, sites, batches, torch.square, rests, losses=losses))


def unpredicted(products: Tensor, units: Tensor, damping: float) -> Tensor:
    """Return the matrix [inputs, inputs] that turns inputs into what the other units do not predict of them.

    `products` are those of pairs of inputs, `units` [units, channels] lists the inputs of each unit. Of the
    regression of a unit on all others the inverse of the products already holds the remainder.
    """
    diagonal = products.diagonal()
    added = damping * diagonal.mean().clamp(min=torch.finfo(products.dtype).tiny)
    damped = products.double() + added.double() * torch.eye(len(products), dtype=torch.float64).to(
        products.device
    )
    if not damped.isfinite().all():
        raise DataError("the activations are not finite, so no units can be told from others")
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    if units.shape[1] == 1:
        return (inverse / inverse.diagonal()).to(products.dtype)
    own = inverse[units[:, :, None], units[:, None, :]]  # [units, channels, channels]
    columns = inverse[:, units].transpose(0, 1)  # [units, inputs, channels]
    out = torch.empty_like(inverse)
    out[:, units] = (columns @ torch.linalg.inv(own)).transpose(0, 1)
    return out.to(products.dtype)
