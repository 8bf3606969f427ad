"""What matrices read: the inputs of linear layers, one row for each real token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batches import Batches, examples_in, model_inputs
from ..core.errors import EspalierError


def read(
    model: Any, sites: Sequence[Any], batches: Batches, see: Callable[[Any, Tensor], None], by: str
) -> None:
    """Run the batches and call `see(site, x)` for each use of each matrix; x is [tokens, inputs].

    Padding is left out, by the attention mask that belongs to the matrix's stack. `by` is who asks.
    """
    check_readable(sites, batches, by)
    # An encoder-decoder may make what its decoder reads of the labels.
    labels = bool(getattr(model.config, "is_encoder_decoder", False))
    for batch in batches:
        handles = []

        def watch(_: nn.Module, args: Any, site: Any, batch: Any = batch) -> None:
            see(site, _real(model, site, batch, args[0].detach()))

        try:
            for site in sites:
                handles.append(site.linear.register_forward_pre_hook(partial(watch, site=site)))
            with torch.no_grad():
                model(**model_inputs(batch, labels=labels))
        finally:
            for handle in handles:
                handle.remove()


def check_readable(sites: Sequence[Any], batches: Batches, by: str) -> None:
    """There are batches, and every matrix multiplies an input."""
    if not batches:
        raise EspalierError(f"{by} needs calibration data: give it some batches")
    for site in sites:
        if site.reads in ("ids", "channels"):
            what = "an embedding" if site.reads == "ids" else "the scale of a norm"
            raise EspalierError(
                f"{by} looks at what a matrix reads, and {site.name} is {what}, which multiplies no input. "
                "Leave it out, or score it by magnitude"
            )


def _real(model: Any, site: Any, batch: Any, x: Tensor) -> Tensor:
    """[tokens, inputs] of x, which is [batch, tokens, inputs], or [batch * tokens, inputs] in OPT."""
    size = examples_in(batch)
    if x.dim() == 3 and len(x) == 1 < size:  # relative positions: every example reads the same
        return x.expand(size, -1, -1).flatten(0, 1)
    mask = _mask(model, site, batch)
    if mask is not None and mask.shape != x.shape[:-1]:
        frames = getattr(model.base_model, "_get_feature_vector_attention_mask", None)
        if x.dim() == 2 and len(x) == mask.numel():
            mask = mask.flatten()
        elif x.dim() == 3 and frames is not None:  # of sound, the mask counts samples
            mask = frames(x.shape[1], mask)
        else:
            mask = None
    return x.reshape(-1, x.shape[-1]) if mask is None else x[mask.bool()]


def _mask(model: Any, site: Any, batch: Any) -> Tensor | None:
    if site.name.startswith("vision_model"):
        return None
    both = getattr(model.config, "is_encoder_decoder", False)
    if site.reads == "encoder":
        return batch.get("attention_mask" if both else "encoder_attention_mask")
    if not both or not site.name.startswith("decoder"):
        return batch.get("attention_mask")
    if "decoder_attention_mask" in batch or "decoder_input_ids" in batch:
        return batch.get("decoder_attention_mask")
    labels = batch.get("labels")
    if labels is not None and labels.dim() == 2 and not labels.is_floating_point():
        return _late(labels >= 0)  # what is no label is padding
    # Labels of classes, spans or none: the decoder reads what the encoder does.
    return _late(batch.get("attention_mask"))


def _late(real: Tensor | None) -> Tensor | None:
    """What is read one step late, after a token to start with. The last token is read by nobody: it falls off
    at the end of a full row, and where padding leaves room for it, nothing comes of it."""
    if real is None:
        return None
    real = real.long()
    late = torch.cat([torch.ones_like(real[:, :1]), real[:, :-1]], 1)
    return late * (late.cumsum(1) <= real.sum(1, keepdim=True))
