"""The shape of a cut model without its weights, given to a model before the weights are loaded.

This file needs only torch and transformers: `espalier.save` writes a copy of it, with storage/hook.py, into
every folder of a cut model, so that the folder also loads where espalier is not installed.

A skeleton is plain JSON with three tables, all paths relative to the base model:
    shapes      parameter -> its size after the cut
    attributes  sizes that modules hold as attributes (`...attention.num_heads`)
    grafts      modules that behave differently after the cut, see the classes below
"""

import copy
from functools import cache
from inspect import signature
from math import prod
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

METHOD = "espalier"
VERSION = 1


class LocalConfig:
    """A config that differs for one module: its own values first, then those of the shared config."""

    def __init__(self, shared: Any, **own: Any) -> None:
        self.__dict__.update(own, _shared=shared)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_shared" not in self.__dict__:  # while being copied
            raise AttributeError(name)
        return getattr(self._shared, name)


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
    """A transposed linear layer (Conv1D) without inputs: its output is its bias."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def own_heads(whole: Tensor, grafted: dict[str, Any]) -> Tensor:
    """Return [batch, heads, to, from] or [batch * heads, to, from] with the kept heads only."""
    own = whole.reshape(-1, grafted["heads"], *whole.shape[-2:])[:, grafted["kept"]]
    return own if whole.dim() == 4 else own.flatten(0, 1)


GRAFTS = {graft.__name__: graft for graft in (Headless, Narrowed, SharedBias, Unfed)}


def graft(module: Any, grafted: dict[str, Any]) -> None:
    """Give a module the behaviours of `grafted["as"]`, outermost first; an empty list removes them."""
    plain: Any = getattr(type(module), "ungrafted", type(module))
    if grafted.get("as"):
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


def set_attribute(module: nn.Module, path: str, value: int) -> None:
    """Set `a.b.size`; a size in the shared config is set for this module only."""
    holder, name = _holder(module, path)
    if isinstance(getattr(holder, name, None), bool) or not isinstance(getattr(holder, name, None), int):
        raise ValueError(f"{path} is not an integer attribute, so a cut cannot change it")
    if path.rpartition(".")[0].endswith("config"):
        owner: Any = module.get_submodule(path.removesuffix(f".config.{name}"))
        own = {k: v for k, v in vars(holder).items() if k != "_shared"}
        own = own if isinstance(holder, LocalConfig) else {}
        owner.config = LocalConfig(getattr(holder, "_shared", holder), **{**own, name: value})
    else:
        setattr(holder, name, value)


def get_attribute(module: nn.Module, path: str) -> Any:
    """Return `a.b.size`."""
    holder, name = _holder(module, path)
    return getattr(holder, name)


def _holder(module: nn.Module, path: str) -> tuple[Any, str]:
    owner, _, name = path.rpartition(".")
    parent, _, last = owner.rpartition(".")
    return (module.get_submodule(parent).config if last == "config" else module.get_submodule(owner)), name


def refit(module: Any) -> None:
    """Set the sizes that a linear layer holds as attributes to those of its weight."""
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif hasattr(module, "nf"):  # transformers' Conv1D, which keeps [in, out]
        module.nx, module.nf = module.weight.shape


def is_ours(record: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a config's `quantization_config` is the record of a cut."""
    return isinstance(record, dict) and record.get("quant_method") == METHOD


def empty_record() -> dict[str, Any]:
    """Return the record of a model that was not cut."""
    plan = {"version": 1, "keep": {}, "units": {}, "origin": {}}
    tables: dict[str, Any] = {"shapes": {}, "attributes": {}, "grafts": {}}
    return {"quant_method": METHOD, "version": VERSION, "plan": plan, "skeleton": tables}


def check(record: Any) -> dict[str, Any]:
    """Return the skeleton of a record from a config file, or raise if the record is damaged."""
    if not isinstance(record, dict) or not isinstance(record.get("skeleton"), dict):
        raise ValueError("the record of the cut in the config is damaged: it has no skeleton")
    version = record.get("version")
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise ValueError(f"the cut has version {version!r}; versions up to {VERSION} can be read")
    skeleton: dict[str, Any] = record["skeleton"]
    for table, is_valid in {"shapes": _is_shape, "attributes": _is_count, "grafts": _is_graft}.items():
        rows = skeleton.get(table)
        if not isinstance(rows, dict) or not all(isinstance(k, str) and is_valid(v) for k, v in rows.items()):
            raise ValueError(f"the skeleton in the config is damaged: see its {table}")
    return skeleton


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) in (1, 2) and all(map(_is_count, value))


def _is_graft(value: Any) -> bool:
    kinds = {"as": list, "argument": str, "heads": int, "kept": list, "tail": str}
    if not isinstance(value, dict) or any(not isinstance(v, kinds.get(k, ())) for k, v in value.items()):
        return False
    names = value.get("as", [])
    if not all(isinstance(n, str) and n in GRAFTS for n in names) or len(set(names)) < len(names):
        return False
    needed = {"Headless": "tail", "Narrowed": "argument heads kept", "SharedBias": "heads kept"}
    if not all(set(needed.get(name, "").split()) <= set(value) for name in names):
        return False
    return all(_is_count(k) and k < value.get("heads", 0) for k in value.get("kept", []))


def _check_graft(module: Any, path: str) -> None:
    """Raise unless the module has everything that its behaviours will ask for."""
    grafted, submodules = module.grafted, dict(module.named_modules())
    wanted = ["+" + grafted["argument"]] if "Narrowed" in grafted["as"] else []
    for step in [*wanted, *grafted.get("tail", "").split()]:
        where = {"+": module.arguments, "~": vars(module)}.get(step[0], submodules)
        if (step[1:] if step[0] in "+~" else step) not in where:
            raise ValueError(f"{path} has no {step!r}, which its graft in the skeleton names")


def put_on(model: Any, record: Any) -> Any:
    """Give an unpruned model, best on the meta device, the shapes of the cut one, and return it.

    A class with only some of the blocks (an encoder alone) takes what concerns these.
    """
    skeleton, base = check(record), model.base_model
    # In transformers 5.18 to 5.20, a CLIP tower with a projection is its own base model.
    parts = [base, *(part for part in base.children() if hasattr(part, "base_model"))]
    inside = [{name for name, _ in part.named_modules()} for part in parts]
    owners = {path.rpartition(".")[0] for path in skeleton["shapes"]}
    base, modules = next((found for found in zip(parts, inside) if owners & found[1]), (base, inside[0]))
    for path, shape in skeleton["shapes"].items():
        owner, _, name = path.rpartition(".")
        if owner not in modules:
            continue
        module = base.get_submodule(owner)
        old = module._parameters.get(name)
        if old is None or len(shape) != old.dim() or any(n > m for n, m in zip(shape, old.shape)):
            size = None if old is None else tuple(old.shape)
            raise ValueError(f"{path} has size {size}; the skeleton has {tuple(shape)}, which does not fit")
        if prod(shape) != old.numel():
            part = old.detach()[tuple(map(slice, shape))].clone()  # of weights that are initialised already
            setattr(module, name, nn.Parameter(part, requires_grad=old.requires_grad))
        if name == "weight":
            refit(module)
    for path, value in skeleton["attributes"].items():
        if path.rpartition(".")[0].removesuffix(".config") in modules:
            set_attribute(base, path, value)
    for path, grafted in skeleton["grafts"].items():
        if path in modules and path:
            graft(base.get_submodule(path), copy.deepcopy(grafted))
            if grafted.get("as"):
                _check_graft(base.get_submodule(path), path)
    return model
