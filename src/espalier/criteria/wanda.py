"""Wanda: |w|·‖x‖, x being what the weight reads over all real tokens (https://arxiv.org/abs/2306.11695).

Scores compare within an output row: choose by `per_row`, as `prune` does by itself.
"""

import torch

from ..engine.activations import read
from . import Scores, criterion


@criterion("weights", rescored=True, scope="row", inputs=True)
def wanda(model, sites, batches) -> Scores:  # type: ignore[no-untyped-def]
    squares = {}
    for site in sites:
        weight = site.fold(lambda w, _: w)
        squares[site.name] = weight.new_zeros(weight.shape[site.input_axis], dtype=torch.float64)

    def see(site, x):  # type: ignore[no-untyped-def]
        squares[site.name] += x.double().square().sum(0)

    read(model, sites, batches, see, "wanda")
    scores = Scores()
    for site in sites:
        norm = squares[site.name].sqrt()
        scores[site.name] = site.fold(
            lambda w, _, x=norm, site=site: w.abs() * (x[:, None] if site.input_axis == 0 else x).to(w)
        )
    return scores
