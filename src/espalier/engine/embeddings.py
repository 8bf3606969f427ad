"""Embeddings of texts: the hidden states of a text pooled into one vector, and how alike two of them are.

The forms of pooling are those of sentence-transformers, so that its numbers are these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.batches import SCORES, Batch
from ..core.errors import DataError

TINY = 1e-9  # a text without tokens


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=TINY)


def _mean_by_root(hidden: Tensor, mask: Tensor) -> Tensor:
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=TINY).sqrt()


def _weighted_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean, weighted by the place of a token among those of its text."""
    return _mean(hidden, mask * mask.cumsum(1))


def _max(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden.masked_fill(mask == 0, -torch.inf).amax(1)


def _first(hidden: Tensor, mask: Tensor) -> Tensor:
    return _at(hidden, mask[..., 0].argmax(1))


def _last(hidden: Tensor, mask: Tensor) -> Tensor:
    return _at(hidden, hidden.shape[1] - 1 - mask[..., 0].flip(1).argmax(1))


def _at(hidden: Tensor, places: Tensor) -> Tensor:
    return hidden[torch.arange(len(hidden), device=hidden.device), places]


# in the order in which sentence-transformers joins several
POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": _first,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_by_root,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {  # by the names of their classes in torch
    "GELU": F.gelu,
    "Identity": lambda x: x,
    "ReLU": F.relu,
    "SiLU": F.silu,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
}


@dataclass(frozen=True, eq=False)
class Dense:
    """A linear layer between pooling and normalisation, and its activation; it is read, never pruned."""

    weight: Tensor  # [out, in]
    bias: Tensor | None = None
    activation: str = "Tanh"

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.weight.shape[1]:
            raise DataError(
                f"a dense layer of the embeddings reads {self.weight.shape[1]} numbers a text, and pooling "
                f"gives {x.shape[-1]}: it belongs to another model"
            )
        bias = None if self.bias is None else self.bias.to(x)
        return ACTIVATIONS[self.activation](F.linear(x, self.weight.to(x), bias))


@dataclass(frozen=True)
class Embedder:
    """How the output of a model becomes one vector for each text, and one number for each pair."""

    poolings: tuple[str, ...] = ("mean",)
    normalised: bool = False
    prompt: str = ""  # before every text
    max_length: int | None = None  # tokens
    dense: tuple[Dense, ...] = ()  # one after the other, before the normalisation
    lower: bool = False  # texts are read in lower case

    def reads(self, text: str) -> str:
        """Return a text as it is given to the tokenizer: after the prompt, in lower case if that is so."""
        read = self.prompt + text
        return read.lower() if self.lower else read

    def embed(self, out: Any, batch: Batch) -> Tensor:
        """Return the embeddings of the texts of a batch, [texts, width]."""
        hidden = out.last_hidden_state
        if hidden.dtype != torch.float64:
            hidden = hidden.float()  # sums of half precision overflow
        mask = batch.get("attention_mask")
        given = torch.ones(hidden.shape[:2]) if mask is None else mask
        real = given.to(hidden)[..., None]
        found = torch.cat([POOLINGS[name](hidden, real) for name in self.poolings], -1)
        for layer in self.dense:
            found = layer(found)
        return F.normalize(found, dim=-1) if self.normalised else found

    def similarities(self, out: Any, batch: Batch) -> Tensor:
        """Return the cosine of the two embeddings of each pair, [pairs, 1]; rows of a pair are neighbours."""
        found = self.embed(out, batch)
        if len(found) % 2:
            raise DataError(f"pairs of texts have two rows each in a batch; this one has {len(found)} rows")
        return F.cosine_similarity(found[::2], found[1::2])[:, None]

    def loss(self, out: Any, batch: Batch) -> Tensor:
        """Return the mean squared difference of similarities and scores, which are from 0 to 1."""
        if SCORES not in batch:
            raise DataError(f"pairs without scores give no loss: put them into the batches as {SCORES!r}")
        found = self.similarities(out, batch)[:, 0]
        return (found - batch[SCORES].to(found)).square().mean()
