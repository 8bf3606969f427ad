"""Keys and values of earlier tokens as inputs and outputs of a language model, while it is traced."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.errors import UnsupportedError
from ..core.types import PreTrainedModel
from ..engine.passes import other_forward
from .runtime import PAST, PRESENT

TRACED_PAST = 11  # earlier tokens of the traced example; no other size of a model is likely to be the same


class Kept(NamedTuple):
    """What one layer keeps of each token: this many heads, with so many channels."""

    heads: int
    key: int
    value: int


Layers = dict[int, Kept]  # without the layers that have no heads


def keeps_cache(model: PreTrainedModel) -> bool:
    """Whether a model is one that generates text with a cache of keys and values."""
    takes = inspect.signature(model.forward).parameters
    return bool(model.can_generate()) and not model.config.is_encoder_decoder and PAST in takes


def kept_layers(model: PreTrainedModel) -> Layers:
    """Return what every layer with heads keeps of a token, found by a pass over two."""
    from transformers import DynamicCache

    ids = torch.zeros(1, 2, dtype=torch.long)
    cache: Any = DynamicCache()  # of the plain kind: a window hides tokens, but drops none
    with torch.no_grad():
        model(input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=cache, use_cache=True)
    empty = _headless(model)
    found = {}
    for number, layer in enumerate(cache.layers):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if number in empty or keys is None or values is None:
            continue
        if keys.dim() != 4 or values.dim() != 4 or keys.shape[2] != 2:
            raise UnsupportedError(f"layer {number} keeps something else than keys and values of tokens")
        found[number] = Kept(int(keys.shape[1]), int(keys.shape[3]), int(values.shape[3]))
    if not found:
        raise UnsupportedError("no layer keeps keys and values")
    return found


def _headless(model: PreTrainedModel) -> set[int]:
    """Return the layers without heads: in torch's cache they only count tokens."""
    grafted = [m for m in model.modules() if "Headless" in getattr(m, "grafted", {}).get("as", ())]
    return {int(getattr(m, "layer_idx", -1)) for m in grafted}


def positions_of(mask: Tensor) -> Tensor:
    """Return the place of every token among those that are not padding, as `generate` counts."""
    return (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)


@contextmanager
def caching(model: PreTrainedModel, layers: Layers) -> Iterator[None]:
    """Let a model take `past_key_values` by layer and return `present`, until the end of the context.

    Positions are counted from the attention mask, which covers earlier and new tokens.
    """
    from transformers import DynamicCache

    original: Any = model.forward
    takes = inspect.signature(original).parameters
    first, empty = str(min(layers)), _headless(model)

    def forward(input_ids: Tensor, attention_mask: Tensor, **given: Any) -> dict[str, Any]:
        past: Mapping[str, Mapping[str, Tensor]] = given.pop(PAST)
        earlier = past[first]["key"].shape[2]
        nothing = past[first]["key"].new_zeros(input_ids.shape[0], 1, earlier, 1)
        cache: Any = DynamicCache()
        for number in range(max({*layers, *empty}) + 1):
            if number in layers:
                cache.update(past[str(number)]["key"], past[str(number)]["value"], number)
            elif number in empty:
                cache.update(nothing, nothing, number)
        if "position_ids" in takes:
            given["position_ids"] = positions_of(attention_mask)[:, -input_ids.shape[1] :]
        out = original(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=cache,
            use_cache=True,
            **given,
        )
        kept = {str(number): cache.layers[number] for number in layers}
        present = {number: {"key": layer.keys, "value": layer.values} for number, layer in kept.items()}
        return {"logits": out.logits, PRESENT: present}

    with other_forward(model, forward):
        yield


def traced_past(layers: Layers, batch_size: int) -> dict[str, dict[str, Tensor]]:
    """Return keys and values of earlier tokens to trace a model with."""
    draw = torch.Generator().manual_seed(0)

    def some(heads: int, channels: int) -> Tensor:
        return torch.randn(batch_size, heads, TRACED_PAST, channels, generator=draw)

    return {
        str(number): {"key": some(kept.heads, kept.key), "value": some(kept.heads, kept.value)}
        for number, kept in layers.items()
    }
