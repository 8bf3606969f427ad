"""Attention received: how much all queries look at a token, averaged over heads and queries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

NAME = "espalier_tokens"  # an attention of transformers, used only in layers that score their tokens


def received(maps: Tensor, real: Tensor, *, diagonal: bool = True) -> Tensor:
    """Return the attention that each token receives, [batch, tokens]; of one text they add up to 1.

    Maps are [batch, heads, queries, keys], `real` [batch, tokens] is False for padding: padding neither
    looks nor is looked at. Averaging over keys instead would give the same 1/n to every token, because each
    query's attention adds up to 1.
    """
    weight = real.to(maps.dtype)
    if not diagonal:
        maps = maps * (1 - torch.eye(maps.shape[-1], dtype=maps.dtype, device=maps.device))
    total = maps.sum((1, 2)) if bool(real.all()) else torch.einsum("bhqk,bq->bk", maps, weight)
    counted = maps.shape[1] * weight.sum(1, keepdim=True).clamp(min=1)
    return total * weight / counted


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Compute attention with its maps, whatever form the mask has; merged tokens count by their size."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = query @ key.transpose(2, 3) * scale
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    state = getattr(module, "token_state", None)
    if state is not None and state.sizes is not None:
        scores = scores + state.sizes[:, None, None].log().to(scores.dtype)
    maps = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    if state is not None:
        state.maps, state.keys = maps, key.mean(1)
    dropped = nn.functional.dropout(maps, dropout, module.training) if dropout else maps
    return (dropped @ value).transpose(1, 2).contiguous(), maps


def register() -> None:
    """Make the attention known to transformers, with the masks of sdpa, which are None where all is real."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
