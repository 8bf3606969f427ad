"""The inputs of linear layers, one row for each real token: padding is left out."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import WeightSite
from ..architectures.sites import unwrapped
from ..core.batches import Batch, Batches, examples_in, model_inputs, require_batches
from ..core.errors import UnsupportedError
from ..core.types import PreTrainedModel


def read_inputs(
    model: PreTrainedModel,
    sites: Sequence[WeightSite],
    batches: Batches,
    see: Callable[[WeightSite, Tensor], None],
    method: str,
) -> None:
    """Run the batches and call `see(site, x)` for each use of each matrix; x is [tokens, inputs].

    Padding is left out, by the attention mask of the matrix's stack. `method` is named in errors.
    """
    check_readable(sites, batches, method)
    # An encoder-decoder may compute what its decoder reads from the labels.
    labels = bool(getattr(model.config, "is_encoder_decoder", False))
    for batch in batches:

        def watch(_: nn.Module, args: Any, site: WeightSite, batch: Batch = batch) -> None:
            see(site, real_tokens(model, site, batch, args[0].detach()))

        with torch.no_grad(), ExitStack() as hooks:
            for site in sites:
                hooks.enter_context(site.linear.register_forward_pre_hook(partial(watch, site=site)))
            model(**model_inputs(batch, labels=labels))


def check_readable(sites: Sequence[WeightSite], batches: Batches, method: str) -> None:
    """Raise an error unless there are batches and every matrix multiplies an input."""
    require_batches(batches, method)
    for site in sites:
        if site.reads in ("ids", "channels"):
            kind = "an embedding" if site.reads == "ids" else "the scale of a norm"
            raise UnsupportedError(
                f"{method} uses the inputs of a matrix, and {site.name} is {kind}, which has none. "
                "Leave it out, or score it by magnitude"
            )


def real_tokens(model: PreTrainedModel, site: WeightSite, batch: Batch, x: Tensor) -> Tensor:
    """Return [tokens, inputs] of x, which is [batch, tokens, inputs], or [batch * tokens, inputs] in OPT."""
    size = examples_in(batch)
    if x.dim() == 3 and len(x) == 1 < size:  # relative positions: every example reads the same
        return x.expand(size, -1, -1).flatten(0, 1)
    mask = _mask(model, site, batch)
    if mask is not None and mask.shape != x.shape[:-1]:
        frames = getattr(unwrapped(model).base_model, "_get_feature_vector_attention_mask", None)
        if x.dim() == 2 and len(x) == mask.numel():
            mask = mask.flatten()
        elif x.dim() == 3 and frames is not None:  # of sound, the mask counts samples
            mask = frames(x.shape[1], mask)
        else:
            mask = None
    return x.reshape(-1, x.shape[-1]) if mask is None else x[mask.bool()]


def _mask(model: PreTrainedModel, site: WeightSite, batch: Batch) -> Tensor | None:
    """Return the mask of the tokens that the matrix reads, or None if it reads all."""
    both = getattr(model.config, "is_encoder_decoder", False)
    if site.reads == "encoder":
        return batch.get("attention_mask" if both else "encoder_attention_mask")
    if not both or site.mask != "decoder_attention_mask":
        return batch.get("attention_mask") if site.mask else None
    if "decoder_attention_mask" in batch or "decoder_input_ids" in batch:
        return batch.get("decoder_attention_mask")
    labels = batch.get("labels")
    if labels is not None and labels.dim() == 2 and not labels.is_floating_point():
        return _shift(labels >= 0)  # ids below zero are padding
    # Labels of classes, spans or none: the decoder reads what the encoder does.
    return _shift(batch.get("attention_mask"))


def _shift(real: Tensor | None) -> Tensor | None:
    """Return the mask of ids that are read one step later, after a start token.

    The last real token is never read: it is cut off at the end of a full row, and where padding leaves room
    for it, its output is not used.
    """
    if real is None:
        return None
    real = real.long()
    late = torch.cat([torch.ones_like(real[:, :1]), real[:, :-1]], 1)
    return late * (late.cumsum(1) <= real.sum(1, keepdim=True))
