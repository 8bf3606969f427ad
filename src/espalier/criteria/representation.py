"""Representation: what removal does to the last hidden states, to second order; no labels, no head needed.

The squared change of a text's mean hidden state by a gate, over all channels: that of its product with random
signs, averaged over `draws` of them. Where only the first token is read (a BERT classifier), it is its own.

draws   vectors of random signs; more of them give less noise and take longer
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import Site
from ..architectures.sites import STACKED
from ..architectures.stack import StackSite
from ..core.batches import Batch, Loss
from ..engine.gate_gradients import gate_gradients
from . import Batches, Scores, criterion
from ._predictions import check_draws


@criterion(
    *("heads", "neurons", *STACKED),
    rescored=True,
    needs_data=True,
    unit="squared change of the last hidden state",
)
def representation(
    model: Any, sites: Sequence[Site | StackSite], batches: Batches, *, draws: int = 4
) -> Scores:
    check_draws(draws)
    last: list[Tensor] = []

    def keep(_: nn.Module, args: Any, out: Any) -> None:
        last[:] = [out[0]]  # of a decoder too: the last hidden state is first

    losses = [_projected(last, draw) for draw in range(draws)]
    with model.base_model.register_forward_hook(keep):
        total = gate_gradients(model, sites, batches, torch.square, losses=losses, by_text=True)
    return Scores({name: value / draws for name, value in total.items()})


def _projected(last: Sequence[Tensor], seed: int) -> Loss:
    """Return the mean hidden state of each text times a vector of random signs."""

    def loss(out: Any, batch: Batch) -> Tensor:
        hidden = last[0]
        draw = torch.Generator().manual_seed(seed)
        signs = (2 * torch.randint(2, hidden.shape[-1:], generator=draw) - 1).to(hidden)
        mask = batch.get("decoder_attention_mask", batch.get("attention_mask"))
        if mask is None or mask.shape != hidden.shape[:2]:
            mask = hidden.new_ones(hidden.shape[:2])
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return (mean @ signs).mean()

    return loss
