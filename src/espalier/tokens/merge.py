"""Merging: the most similar tokens become one (ToMe, Bolya et al. 2023, https://arxiv.org/abs/2210.09461)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize


def merge_similar(
    keys: Tensor, hidden: Tensor, sizes: Tensor, real: Tensor, left: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge tokens until `left` of each text are left; return (hidden, sizes, kept), before gathering.

    Tokens take turns in two sets. Each of the first set is compared with all of the second by its key; those
    nearest to a partner are added to it, weighted by how many tokens each stands for. The first token stays.
    At most half of the tokens can be merged at once.
    """
    rank = real.long().cumsum(1) - 1
    even, odd = real & (rank % 2 == 0), real & (rank % 2 == 1)
    unit = normalize(keys.float(), dim=-1)
    near = unit @ unit.transpose(1, 2)  # [batch, tokens, tokens]
    near = near.masked_fill(~(even[:, :, None] & odd[:, None, :]), -torch.inf)
    best, partner = near.max(-1)
    best = best.masked_fill(even & (rank == 0), -torch.inf)
    order = best.argsort(dim=1, descending=True, stable=True)
    place = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    merged = (place < (real.sum(1) - left)[:, None]) & best.isfinite()
    weight = (sizes * merged)[..., None].to(hidden.dtype)
    target = partner[..., None].expand_as(hidden)
    grown = (hidden * sizes[..., None].to(hidden.dtype)).scatter_add(1, target, hidden * weight)
    larger = sizes.scatter_add(1, partner, sizes * merged)
    return grown / larger[..., None].to(hidden.dtype).clamp(min=1), larger, real & ~merged
