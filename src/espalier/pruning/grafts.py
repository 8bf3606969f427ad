"""Grafts: how modules behave after a cut, where they cannot compute as their class does.

This file needs only torch: a copy of it is in every folder of a cut model, see skeleton.py.
"""

from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Headless(nn.Module):
    """Attention without heads: only what follows the heads remains, and a map of no heads.

    `tail` lists what the attention module still does to the (empty) context: `c_proj` calls that
    submodule, `+residual` adds that argument, `~rate` is dropout at the rate of that attribute.
    """

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(self.arguments, args)) | kwargs
        x = given["hidden_states"]
        keys = self._count_keys(x, given)
        out = x[..., :0]
        if torch.is_grad_enabled():
            # What the heads read stays in the graph, at no cost: distributed training waits for every weight.
            read = [*self.parameters(), *(v for v in given.values() if isinstance(v, Tensor) and v.dim())]
            out = out + sum(tensor[..., :0].sum() for tensor in read if tensor.requires_grad)
        for step in self.grafted["tail"].split():
            if step[0] == "+":
                out = out + given[step[1:]]
            elif step[0] == "~":
                out = F.dropout(out, getattr(self, step[1:]), self.training)
            else:
                out = self.get_submodule(step)(out)
        # Fast attentions return no maps, and a model counts those it is given.
        attention = str(getattr(getattr(self, "config", None), "_attn_implementation", ""))
        fast = any(name in attention for name in ("sdpa", "flash", "flex"))
        return out, None if fast or x.dim() < 3 else x.new_zeros(x.shape[0], 0, x.shape[1], keys)

    def _count_keys(self: Any, x: Tensor, given: dict[str, Any]) -> Any:
        """Return how many tokens the heads would read, and add these to the cache."""
        encoded = given.get("key_value_states", given.get("encoder_hidden_states"))
        keys = x.shape[-2] if encoded is None else encoded.shape[1]
        cache = given.get("past_key_values", given.get("layer_past"))
        if cache is None:
            return keys
        # Models read the number of tokens from the cache of some layer; an empty tensor would count none.
        token = x.new_zeros(x.shape[0], 1, keys, 1)  # [batch, heads, tokens, channels]
        if encoded is None:
            read = getattr(cache, "self_attention_cache", cache).update(token, token, self.layer_idx)
            return read[0].shape[-2]
        filled = getattr(cache, "is_updated", None)
        if filled is not None and not filled.get(self.layer_idx):  # once: what is read does not grow
            cache.cross_attention_cache.update(token, token, self.layer_idx)
            filled[self.layer_idx] = True
        return keys


class Narrowed(nn.Module):
    """Attention whose argument has one slice per head of the unpruned model: take those of the kept heads."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(self.arguments, args)) | kwargs
        name = self.grafted["argument"]
        if given.get(name) is not None:
            given[name] = own_heads(given[name], self.grafted)
        return super().forward(**given)


class SharedBias(nn.Module):
    """T5: the first block computes a position bias with one column per head, and every block uses it.

    The whole bias is passed from block to block; each attention takes the columns of its own heads.
    """

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(self.arguments, args)) | kwargs
        bias = given.pop("position_bias", None)
        if given.get("key_value_states") is not None:  # cross-attention: a bias of zeros per layer
            out = super().forward(**given)
            return out[0], None, out[-1]
        if bias is None and self.has_relative_attention_bias:
            bias = self._bias(given["hidden_states"], given.get("past_key_values"))
        own = bias if bias is None else own_heads(bias, self.grafted)
        out = super().forward(position_bias=own, **given)
        return out[0], bias, out[-1]

    def _bias(self: Any, hidden_states: Tensor, cache: Any) -> Tensor:
        tokens = keys = hidden_states.shape[1]
        past = 0
        if cache is not None:
            cache = getattr(cache, "self_attention_cache", cache)
            past = cache.get_seq_length(self.layer_idx)
            keys = cache.get_mask_sizes(tokens, self.layer_idx)[0]
        bias = self.compute_bias(tokens, keys, device=hidden_states.device, past_seen_tokens=past)
        return bias.to(hidden_states.dtype)


class Unfed(nn.Module):
    """A transposed linear layer (Conv1D) without inputs: its output is its bias, if it has one left."""

    def forward(self: Any, x: Tensor) -> Tensor:
        out: Tensor = x @ self.weight
        return out if self.bias is None else out + self.bias


class Absent(nn.Module):
    """A norm or a scale of a sublayer that is gone: it passes on what it reads."""

    def forward(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x


def own_heads(whole: Tensor, grafted: dict[str, Any]) -> Tensor:
    """Return [batch, heads, to, from] or [batch * heads, to, from] with the kept heads only."""
    own = whole.reshape(-1, grafted["heads"], *whole.shape[-2:])[:, grafted["kept"]]
    return own if whole.dim() == 4 else own.flatten(0, 1)


GRAFTS = {graft.__name__: graft for graft in (Headless, Narrowed, SharedBias, Unfed, Absent)}


def graft(module: Any, grafted: dict[str, Any]) -> None:
    """Give a module the behaviours of `grafted["as"]`, outermost first; an empty list removes them."""
    plain: Any = getattr(type(module), "ungrafted", type(module))
    if grafted.get("as") == ["Absent"]:
        # not of its old class: what initialises that one would look for its weights
        module.grafted, module.__class__ = grafted, Absent
    elif grafted.get("as"):
        module.grafted = grafted
        module.__class__ = _grafted_class(plain, tuple(grafted["as"]))
    else:
        module.__dict__.pop("grafted", None)
        module.__class__ = plain


@cache
def _grafted_class(plain: Any, names: tuple[str, ...]) -> Any:
    # The name stays: transformers finds modules by the names of their classes.
    body = {
        "__module__": plain.__module__,
        "__reduce_ex__": _reduce,
        "ungrafted": plain,
        "arguments": tuple(signature(plain.forward).parameters)[1:],  # without self
    }
    return type(plain.__name__, (*(GRAFTS[name] for name in names), plain), body)


def _reduce(module: Any, protocol: int) -> Any:
    """Pickle a grafted module: its class cannot be imported by name and is made again."""
    names = tuple(module.grafted["as"])
    return _empty, (type(module).ungrafted, names), module.__dict__


def _empty(plain: Any, names: tuple[str, ...]) -> Any:
    cls = _grafted_class(plain, names)
    return cls.__new__(cls)
