"""Random: a seeded number for each unit, the baseline every criterion has to beat."""

from collections.abc import Sequence

import torch
from torch import nn

from ..architectures.site import AnySite
from ..architectures.sites import STACKED
from . import Batches, Scores, criterion


@criterion("heads", "neurons", "slots", *STACKED, "weights", idle="any")
def random(model: nn.Module, sites: Sequence[AnySite], batches: Batches, *, seed: int = 0) -> Scores:
    generator = torch.Generator().manual_seed(seed)
    return Scores({site.name: torch.rand(site.shape, generator=generator) for site in sites})
