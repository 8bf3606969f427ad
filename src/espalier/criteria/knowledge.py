"""Knowledge: what the predictions and what the sublayer's output would lose (Park et al. 2024, K-prune).

Half of `kl`, the divergence of the predictions to second order, plus `representation` times the squares of
what the unit writes, a mean over tokens and the model's width (`energy`). The published code squares the
gradient of the divergence from the unpruned model, which is zero as long as nothing is removed, and takes it
over whole batches; the second derivative by example is neither (https://arxiv.org/abs/2308.03449).

representation   the weight of the sublayer's output
temperature      of the predictions
"""

from collections.abc import Sequence

from torch import nn

from ..architectures.site import Site
from . import Batches, Scores, criterion
from .energy import energy
from .kl import kl


@criterion(
    "heads", "neurons", rescored=True, needs_data=True, unit="divergence and squared change of the output"
)
def knowledge(
    model: nn.Module,
    sites: Sequence[Site],
    batches: Batches,
    *,
    representation: float = 2.5e-4,
    temperature: float = 2.0,
) -> Scores:
    predicted = kl(model, sites, batches, temperature=temperature)
    written = energy(model, sites, batches)
    widths = {site.name: site.weight("write").shape[2] for site in sites}
    return Scores(
        {name: predicted[name] / 2 + representation * written[name] / width for name, width in widths.items()}
    )
