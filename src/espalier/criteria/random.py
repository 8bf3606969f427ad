"""Random: a seeded number for each unit, the baseline every criterion has to beat."""

import torch

from . import Scores, criterion


@criterion("heads", "neurons", "weights")
def random(model, sites, batches, *, seed: int = 0) -> Scores:  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(seed)
    return Scores({site.name: torch.rand(site.shape, generator=generator) for site in sites})
