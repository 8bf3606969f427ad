"""Attention as one operator of ONNX Runtime. Every layer states its own number of heads, cut or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..core.errors import UnsupportedError
from ..core.types import PreTrainedModel

FUSED = "espalier_fused"
OPERATOR = "com.microsoft::MultiHeadAttention"
UNKNOWN = ("softcap", "s_aux", "position_bias")  # what some models add and the operator lacks


@contextmanager
def fused_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let a model be traced with fused attention; raise if its attention cannot be exchanged.

    Traced, not run: the operator exists in the exported graph only.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register(FUSED, _attend)
    AttentionMaskInterface.register(FUSED, eager_mask)  # a mask that is added to the scores
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(FUSED)
        yield
    except (ValueError, AttributeError, NotImplementedError) as error:
        raise UnsupportedError(f"{type(model).__name__} has an attention of its own: {error}") from error
    finally:
        model.set_attn_implementation(before)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Do what every attention function of transformers does: [batch, heads, tokens, channels] in."""
    for name in UNKNOWN:
        if more.get(name) is not None:
            raise NotImplementedError(f"{OPERATOR} has no {name}")
    batch, heads, tokens, channels = query.shape
    groups = heads // key.shape[1]  # query heads that share keys and values
    if groups > 1:
        key, value = (one.repeat_interleave(groups, dim=1) for one in (key, value))
    flat = [one.transpose(1, 2).reshape(batch, -1, heads * one.shape[-1]) for one in (query, key, value)]
    causal = attention_mask is None and getattr(module, "is_causal", False)
    given = flat if attention_mask is None else [*flat, None, None, attention_mask]
    facts: dict[str, Any] = {"num_heads": heads, "scale": float(scaling or channels**-0.5)}
    attended = torch.onnx.ops.symbolic(
        OPERATOR,
        given,
        attrs=facts | ({"unidirectional": 1} if causal else {}),
        dtype=query.dtype,
        shape=(batch, tokens, heads * value.shape[-1]),
        version=1,
    )
    return attended.view(batch, tokens, heads, -1), None
