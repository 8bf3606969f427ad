"""KCM: how much a unit represents others, times how active it is (https://arxiv.org/abs/2303.04185).

No labels and no gradients. The columns that units write with are points; each is written as a combination,
without negative coefficients, of all of them in the space of a Gaussian kernel K: C ← C·√(K/KC), element by
element, lowers the error ‖Φ − ΦC‖². C_ii is how much of a point no other replaces. That is multiplied by the
unit's mean absolute input, relative to its layer's. Published for neurons; a head's number is the mean of its
channels'. The two are no common scale: do not let heads and neurons compete by it.

width       of the kernel, relative to the root mean square distance of two columns of the layer
tolerance   the relative change of C at which it is final
rounds      at most so many changes
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..architectures.site import Site, WeightSite, wide
from ..architectures.sites import sites as find_sites
from ..core.errors import InvalidValueError
from ..engine.activations import read_inputs
from . import Batches, Scores, criterion

TINY = torch.finfo(torch.float64).tiny


@criterion("heads", "neurons", needs_data=True, unit="representation times activity")
def kcm(
    model: nn.Module,
    sites: Sequence[Site],
    batches: Batches,
    *,
    width: float = 0.5,
    tolerance: float = 1e-2,
    rounds: int = 100,
) -> Scores:
    if not width > 0:
        raise InvalidValueError(f"`width` is above zero; got {width!r}", "width")
    matrices = {matrix.linear: matrix for matrix in find_sites(model, "weights")}
    writers = {site.name: matrices[site.module("write")] for site in sites}
    sizes = {w.name: torch.zeros(w.shape[w.input_axis], dtype=torch.float64) for w in writers.values()}

    def add(site: WeightSite, x: Tensor) -> None:
        sizes[site.name] += x.double().abs().sum(0).cpu()

    read_inputs(model, list(writers.values()), batches, add, "kcm")

    def score(site: Site) -> Tensor:
        columns = wide(site.weight("write").detach()).cpu()  # [units, channels, width]
        own = represent(columns.flatten(0, 1), width, tolerance, rounds).double().view(columns.shape[:2])
        active = sizes[writers[site.name].name][site.index("write")].mean(1)
        return own.mean(1) * active / active.norm().clamp(min=TINY)

    return Scores({site.name: score(site) if site.units else torch.zeros(0) for site in sites})


def represent(points: Tensor, width: float, tolerance: float = 1e-2, rounds: int = 100) -> Tensor:
    """Return the coefficient of every point, [points], in its own combination of all of them."""
    squares = torch.cdist(points, points).square()
    tiny = torch.finfo(points.dtype).tiny
    scale = (width**2 * squares.mean()).clamp(min=tiny)
    kernel = (-squares / scale).exp()
    found = torch.full_like(kernel, 1 / len(kernel))
    for _ in range(rounds):
        new = found * (kernel / (kernel @ found).clamp(min=tiny)).sqrt()  # far points: 0 of 0
        change, found = (new - found).abs().sum() / found.sum(), new
        if change < tolerance:
            break
    return found.diagonal()
