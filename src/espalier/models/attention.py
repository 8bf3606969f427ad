"""Relative attention with memory (Transformer-XL), and with persistent vectors (All-attention).

With keys k, positions r by distance, and persistent vectors m of each head (b batch, h heads, t queries,
s keys, n slots, d head size):

    context  [(q + u)·k + shift((q + w)·r)] / √d       u and w are learned, one number per channel
    slots    q · (√d · m_k) / √d                       no position, no bias
    output   softmax over both, times [v; √n · m_v]
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class KeyProjection(nn.Linear):
    """A projection of keys or positions. Its bias is added to the queries that meet them, not to the keys."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class SlotVectors(nn.Linear):
    """The persistent vectors of all heads, [(h d), n]: a column is a slot.

    The values are called with how open each slot is, [b, 1, n], and return what that adds to the logits:
    nothing for an open slot, −∞ for a closed one. So a gate at their input closes a slot before the softmax,
    and the model computes what it computes without the slot.
    """

    def forward(self, openness: Tensor) -> Tensor:
        tiny = torch.finfo(openness.dtype).tiny
        return torch.where(openness > 0, openness.clamp_min(tiny).log(), -torch.inf)

    def by_head(self, head_dim: int) -> Tensor:
        """Return the vectors, [heads, slots, head size]."""
        return self.weight.view(-1, head_dim, self.weight.shape[1]).transpose(1, 2)


class RelativeAttention(nn.Module):
    """Attention of a segment to itself, to the text before it, and to the persistent vectors."""

    def __init__(self, config: Any, layer_idx: int, slots: int = 0):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.scaling = self.head_dim**-0.5
        width = config.hidden_size
        self.value_scale = math.sqrt(slots)  # of the model as it was made: cutting slots does not change it
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = KeyProjection(width, width)  # its bias is u
        self.v_proj = nn.Linear(width, width, bias=False)
        self.r_proj = KeyProjection(width, width)  # its bias is w
        self.o_proj = nn.Linear(width, width)
        self.slot_keys = SlotVectors(slots, width, bias=False) if slots else None
        self.slot_values = SlotVectors(slots, width, bias=False) if slots else None

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        positions: Tensor,
        memory: Tensor | None = None,
        past_key_values: Any = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output, [b, t, m], and the attention maps, [b, h, t, s + n], if they are computed.

        `attention_mask` [b or 1, 1, t, s] is True where a query may attend; `positions` [1, s, m] belong to
        the distances s − 1 to 0; `memory` is what came before `hidden_states`.
        """
        context = hidden_states if memory is None else torch.cat([memory, hidden_states], 1)
        q, k, v = (
            self._split(p(x))
            for p, x in ((self.q_proj, hidden_states), (self.k_proj, context), (self.v_proj, context))
        )
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        r = self._split(self.r_proj(positions))  # [1, h, s, d]
        u, w = (p.bias.view(-1, 1, self.head_dim) for p in (self.k_proj, self.r_proj))
        by_distance = shift((q + w) @ r.transpose(-1, -2))  # [b, h, t, s]
        fast = self.config._attn_implementation == "sdpa"
        attend = self._attend_fast if fast else self._attend
        out, maps = attend(q, k, v, u, by_distance, attention_mask)
        return self.o_proj(out.transpose(1, 2).flatten(2)), maps

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, u: Tensor, by_distance: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the formula as it is written above."""
        logits = ((q + u) @ k.transpose(-1, -2) + by_distance) * self.scaling
        logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
        slots = self._slots(q)
        if slots is not None:
            keys, values, closed = slots
            logits = torch.cat([logits, q @ keys.transpose(-1, -2) * self.scaling + closed], -1)
        wide = torch.promote_types(logits.dtype, torch.float32)
        maps = F.dropout(logits.softmax(-1, dtype=wide).to(q.dtype), self._dropout, self.training)
        out = maps[..., : k.shape[2]] @ v
        return out if slots is None else out + maps[..., k.shape[2] :] @ values, maps

    def _attend_fast(
        self, q: Tensor, k: Tensor, v: Tensor, u: Tensor, by_distance: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the same with fused attention: all but q·k is a mask that is added to the logits."""
        added = (by_distance + (k * u).sum(-1)[:, :, None]) * self.scaling
        added = added.masked_fill(~mask, torch.finfo(added.dtype).min)
        slots = self._slots(q)
        if slots is not None:
            keys, values, closed = slots
            closed = closed.expand(*added.shape[:3], keys.shape[-2])
            added = torch.cat([added, closed.to(added.dtype)], -1)
            k, v = (torch.cat([a, b.expand(len(a), -1, -1, -1)], 2) for a, b in ((k, keys), (v, values)))
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=added.to(q.dtype), dropout_p=self._dropout * self.training, scale=self.scaling
        )
        return out, None

    def _slots(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return keys and values, [1, h, n, d], and what is added to their logits, [b, 1, 1, n]."""
        if self.slot_keys is None or self.slot_values is None or not self.slot_keys.weight.shape[1]:
            return None
        keys = self.slot_keys.by_head(self.head_dim) * math.sqrt(self.head_dim)
        values = self.slot_values.by_head(self.head_dim) * self.value_scale
        closed = self.slot_values(q.new_ones(len(q), 1, keys.shape[1]))
        return keys[None].to(q.dtype), values[None].to(q.dtype), closed[:, None]

    def _split(self, x: Tensor) -> Tensor:
        """[b, t, (h d)] -> [b, h, t, d]"""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    @property
    def _dropout(self) -> float:
        return float(self.config.attention_dropout)


def shift(x: Tensor) -> Tensor:
    """Move row i of [.., t, s], which has the distances s − 1 to 0, so that column j has i + s − t − j.

    What stands at negative distances has no meaning: it is in the future.
    """
    *rest, t, s = x.shape
    return F.pad(x, (1, 0)).view(*rest, s + 1, t)[..., 1:, :].reshape(*rest, t, s)
