"""Losses whose squared gradients tell how far the predictions move; no labels are needed.

The variance of the change of the logits, each class weighted by its probability at a temperature: at 1 it is
twice the divergence of the predictions, to second order, and the hotter, the less it matters how sure they
are. It is a sum of one square less than there are classes.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from ..core.batches import Batch, Batches, Loss, model_inputs
from ..core.errors import DataError, InvalidValueError


def check_draws(draws: int) -> None:
    """Raise an error unless there is something to draw."""
    if draws < 1:
        raise InvalidValueError(f"`draws` is 1 or more; got {draws!r}", "draws")


def count_outputs(model: Any, batches: Batches) -> tuple[int, bool]:
    """Return how many numbers are predicted at a time, and whether it is for each token."""
    with torch.no_grad():
        out = model(**model_inputs(batches[0]))
    try:
        found = batches.read(out, batches[0])
    except AttributeError:
        raise DataError(
            f"{type(model).__name__} predicts nothing: its output has {', '.join(out)} and no logits. Give "
            "what is read of it, Batches(..., read=lambda out, batch: ...), or score by a loss"
        ) from None
    return found.shape[-1], found.dim() > 2


def prediction_losses(
    count: int, batches: Batches, classes: int, draws: int, temperature: float
) -> list[Loss]:
    """Return losses whose squared gradients add up to the variance; of more than `classes`, of drawn ones."""
    if not temperature > 0:
        raise InvalidValueError(f"`temperature` is above zero; got {temperature!r}", "temperature")
    check_draws(draws)
    if count == 1:
        return [lambda out, batch: batches.read(out, batch).flatten(1).sum(1).mean()]
    if count <= classes:
        return [_against_later(number, temperature) for number in range(count - 1)]
    return [_drawn(draw, draws, temperature) for draw in range(draws)]


def _against_later(number: int, temperature: float) -> Loss:
    """Return the part of the variance that lies between one class and all later ones."""

    def loss(out: Any, batch: Batch) -> Tensor:
        shares = (out.logits / temperature).softmax(-1).detach()
        own, later = shares[..., number], shares[..., number + 1 :]
        rest = later.sum(-1).clamp(min=torch.finfo(later.dtype).tiny)
        gap = out.logits[..., number] - (later * out.logits[..., number + 1 :]).sum(-1) / rest
        change = gap * (own * rest / (own + rest)).sqrt()
        return change.flatten(1).mean(1).mean() if change.dim() > 1 else change.mean()

    return loss


def _drawn(seed: int, draws: int, temperature: float) -> Loss:
    """Return the loss of labels that are drawn from the predictions, for a mean over `draws` of them."""

    def loss(out: Any, batch: Batch) -> Tensor:
        logs = (out.logits / temperature).log_softmax(-1)
        labels = torch.stack(
            [_draw(row, seed, one) for row, one in zip(logs.detach().exp(), _digests(batch), strict=True)]
        )
        own = -temperature * logs.gather(-1, labels[..., None])[..., 0] / draws**0.5
        return own.flatten(1).mean(1).mean() if own.dim() > 1 else own.mean()

    return loss


def _draw(shares: Tensor, seed: int, digest: int) -> Tensor:
    """Return a class for each row of probabilities, [...] of [..., classes], by an example's own digest."""
    draw = torch.Generator(device=shares.device).manual_seed(crc32(seed.to_bytes(8, "little"), digest))
    found = torch.multinomial(shares.reshape(-1, shares.shape[-1]), 1, generator=draw)
    return found.view(shares.shape[:-1])


def _digests(batch: Batch) -> list[int]:
    """Return a number for each example, whatever batch it is in and however that is padded."""
    given = next(value for name, value in batch.items() if name != "labels" and isinstance(value, Tensor))
    given, mask = batch.get("input_ids", given), batch.get("attention_mask")
    rows = list(given)
    if isinstance(mask, Tensor) and mask.shape == given.shape:
        rows = [row[real.bool()] for row, real in zip(given, mask)]
    return [crc32(row.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()) for row in rows]
