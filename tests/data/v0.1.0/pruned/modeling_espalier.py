"""The shape of a cut model without its weights, put on before the weights are loaded.

This file needs torch and transformers and nothing else, not even espalier: `espalier.save` lays a copy of
it into every folder it writes, so that a machine without espalier can load the folder too.

A skeleton is plain JSON with three tables, all paths counted from the base model:
    shapes      parameter -> its size after the cut
    attributes  what a module remembers about its own size (`...attention.num_heads`)
    grafts      modules that must behave differently from now on, see the classes below
"""

import copy
from functools import cache
from importlib import import_module
from inspect import signature
from math import prod
from typing import Any, TypeGuard

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

METHOD = "espalier"
VERSION = 1
SPARSE = "sparse.safetensors"  # the weights of a folder that was saved sparse


class LocalConfig:
    """A config that differs for one module: its own values first, then whatever the shared one says now."""

    def __init__(self, shared: Any, **own: Any) -> None:
        self.__dict__.update(own, _shared=shared)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_shared" not in self.__dict__:  # while being copied
            raise AttributeError(name)
        return getattr(self._shared, name)


class Headless(nn.Module):
    """Attention that lost all its heads: nothing is attended, only what follows the heads remains.

    `tail` names what the attention module itself still does to the (empty) context: `c_proj` calls that
    submodule, `+residual` adds that argument, `~rate` is dropout at the rate of that attribute.
    """

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(self.arguments, args)) | kwargs
        x = given["hidden_states"]
        self._count_tokens(x, given)
        out = x.new_zeros(*x.shape[:-1], 0)
        for step in self.grafted["tail"].split():
            if step[0] == "+":
                out = out + given[step[1:]]
            elif step[0] == "~":
                out = F.dropout(out, getattr(self, step[1:]), self.training)
            else:
                out = self.get_submodule(step)(out)
        # The empty weights stay part of the graph: distributed training waits for every parameter.
        return out + sum(p.sum() for p in self.parameters() if not p.numel()), None

    def _count_tokens(self: Any, x: Tensor, given: dict[str, Any]) -> None:
        # Models ask the cache of some layer how many tokens there were, and an empty tensor answers none.
        cache = given.get("past_key_values", given.get("layer_past"))
        crossing = given.get("key_value_states", given.get("encoder_hidden_states")) is not None
        if cache is not None and not crossing:
            token = x.new_zeros(x.shape[0], 1, x.shape[1], 1)  # [batch, heads, tokens, channels]
            getattr(cache, "self_attention_cache", cache).update(token, token, self.layer_idx)


class Narrowed(nn.Module):
    """Attention that is handed one slice per head of the unpruned model, and takes those of its own heads."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(self.arguments, args)) | kwargs
        name = self.grafted["argument"]
        if given.get(name) is not None:
            given[name] = own_heads(given[name], self.grafted)
        return super().forward(**given)


class SharedBias(nn.Module):
    """T5: the first block computes a position bias with one column per head, and every block uses it.

    The bias travels whole from block to block; each attention takes the columns of its own heads.
    """

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(self.arguments, args)) | kwargs
        bias = given.pop("position_bias", None)
        if (
            given.get("key_value_states") is not None
        ):  # across: the bias is zero, each layer makes its own
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
            past, keys = (
                cache.get_seq_length(self.layer_idx),
                cache.get_mask_sizes(tokens, self.layer_idx)[0],
            )
        bias = self.compute_bias(tokens, keys, device=hidden_states.device, past_seen_tokens=past)
        return bias.to(hidden_states.dtype)


class Unfed(nn.Module):
    """A transposed linear layer (Conv1D) with no inputs left: its bias is all it has to say."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def own_heads(whole: Tensor, grafted: dict[str, Any]) -> Tensor:
    """[batch, heads, to, from] or [batch * heads, to, from] -> the same with the kept heads only."""
    own = whole.reshape(-1, grafted["heads"], *whole.shape[-2:])[:, grafted["kept"]]
    return own if whole.dim() == 4 else own.flatten(0, 1)


GRAFTS = {graft.__name__: graft for graft in (Headless, Narrowed, SharedBias, Unfed)}


def graft(module: Any, grafted: dict[str, Any]) -> None:
    """Give a module the behaviours of `grafted["as"]`, outermost first; an empty list takes them away."""
    plain: Any = getattr(type(module), "ungrafted", type(module))
    if grafted.get("as"):
        module.grafted = grafted
        module.__class__ = _grafted_class(plain, tuple(grafted["as"]))
    else:
        module.__dict__.pop("grafted", None)
        module.__class__ = plain


@cache
def _grafted_class(plain: Any, names: tuple[str, ...]) -> Any:
    # The same name: transformers finds modules by the names of their classes.
    body = {
        "__module__": plain.__module__,
        "__reduce_ex__": _reduce,
        "ungrafted": plain,
        "arguments": tuple(signature(plain.forward).parameters)[1:],  # without self
    }
    return type(plain.__name__, (*(GRAFTS[name] for name in names), plain), body)


def _reduce(module: Any, protocol: int) -> Any:
    """A grafted class has no name to be imported by: copies and worker processes make it anew."""
    names = tuple(module.grafted["as"])
    return _empty, (type(module).ungrafted, names), module.__dict__


def _empty(plain: Any, names: tuple[str, ...]) -> Any:
    cls = _grafted_class(plain, names)
    return cls.__new__(cls)


def set_attribute(module: nn.Module, path: str, value: int) -> None:
    """Set `a.b.size`; a size kept in the shared config is set for this module alone."""
    holder, name = _holder(module, path)
    if isinstance(getattr(holder, name, None), bool) or not isinstance(
        getattr(holder, name, None), int
    ):
        raise ValueError(f"{path} is not a number that a cut could change")
    if path.rpartition(".")[0].endswith("config"):
        owner: Any = module.get_submodule(path.removesuffix(f".config.{name}"))
        own = {k: v for k, v in vars(holder).items() if k != "_shared"}
        own = own if isinstance(holder, LocalConfig) else {}
        owner.config = LocalConfig(getattr(holder, "_shared", holder), **{**own, name: value})
    else:
        setattr(holder, name, value)


def get_attribute(module: nn.Module, path: str) -> Any:
    holder, name = _holder(module, path)
    return getattr(holder, name)


def _holder(module: nn.Module, path: str) -> tuple[Any, str]:
    owner, _, name = path.rpartition(".")
    parent, _, last = owner.rpartition(".")
    return (
        module.get_submodule(parent).config if last == "config" else module.get_submodule(owner)
    ), name


def refit(module: Any) -> None:
    """Let a linear layer say the size its weight has."""
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif hasattr(module, "nf"):  # transformers' Conv1D, which keeps [in, out]
        module.nx, module.nf = module.weight.shape


def is_ours(record: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a config's `quantization_config` is the record of a cut."""
    return isinstance(record, dict) and record.get("quant_method") == METHOD


def check(record: Any) -> dict[str, Any]:
    """The skeleton in a record from a config.json. What comes from outside may be anything."""
    if not isinstance(record, dict) or not isinstance(record.get("skeleton"), dict):
        raise ValueError("the record of the cut in config.json is damaged: it has no skeleton")
    version = record.get("version")
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise ValueError(f"the cut has version {version!r}; this espalier reads up to {VERSION}")
    skeleton: dict[str, Any] = record["skeleton"]
    whole = {"shapes": _is_shape, "attributes": _is_count, "grafts": _is_graft}
    for table, fits in whole.items():
        rows = skeleton.get(table)
        if not isinstance(rows, dict) or not all(
            isinstance(k, str) and fits(v) for k, v in rows.items()
        ):
            raise ValueError(f"the skeleton in config.json is damaged: see its {table}")
    return skeleton


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) in (1, 2) and all(map(_is_count, value))


def _is_graft(value: Any) -> bool:
    kinds = {"as": list, "argument": str, "heads": int, "kept": list, "tail": str}
    if not isinstance(value, dict) or any(
        not isinstance(v, kinds.get(k, ())) for k, v in value.items()
    ):
        return False
    names = value.get("as", [])
    return all(n in GRAFTS for n in names) and len(set(names)) == len(names)


def put_on(model: Any, record: Any) -> Any:
    """Shape an unpruned model, best on the meta device, so that the weights of the cut one fit.

    A class that has only some of the blocks (an encoder alone) takes what concerns it.
    """
    skeleton, base = check(record), model.base_model
    there = {name for name, _ in base.named_modules()}
    for path, shape in skeleton["shapes"].items():
        owner, _, name = path.rpartition(".")
        if owner not in there:
            continue
        module = base.get_submodule(owner)
        old = module._parameters.get(name)
        if old is None or len(shape) != old.dim() or any(n > m for n, m in zip(shape, old.shape)):
            size = None if old is None else tuple(old.shape)
            raise ValueError(f"{path} has size {size}; the skeleton asks for {tuple(shape)}")
        if prod(shape) != old.numel():
            empty = torch.empty(tuple(shape), dtype=old.dtype, device=old.device)
            setattr(module, name, nn.Parameter(empty, requires_grad=old.requires_grad))
        if name == "weight":
            refit(module)
    for path, value in skeleton["attributes"].items():
        if path.rpartition(".")[0].removesuffix(".config") in there:
            set_attribute(base, path, value)
    for path, grafted in skeleton["grafts"].items():
        if path in there and path:
            graft(base.get_submodule(path), copy.deepcopy(grafted))
    return model


def restorer(files: Any) -> Any:
    """What decodes the weights of a sparse folder; it lives in espalier, not in this file."""
    try:
        return import_module("espalier.sparse_folder").Restorer(files)
    except ImportError:
        raise ValueError(
            f"the weights in {SPARSE} are stored sparse, which needs espalier. Install it, or type where it "
            f"is installed: espalier decode {SPARSE} -o model.safetensors"
        ) from None


def register() -> None:
    """Teach `from_pretrained` to put the skeleton on: the one door transformers opens before weights load."""
    from transformers.quantizers import auto
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin

    if METHOD in auto.AUTO_QUANTIZER_MAPPING:
        return

    @auto.register_quantization_config(METHOD)
    class EspalierConfig(QuantizationConfigMixin):
        def __init__(
            self,
            quant_method: str = METHOD,
            version: Any = None,
            plan: Any = None,
            skeleton: Any = None,
            sparse: bool = False,
            **_: Any,
        ) -> None:
            self.quant_method, self.version = quant_method, version
            self.plan, self.skeleton = plan, skeleton
            if sparse:
                self.sparse = True

    @auto.register_quantizer(METHOD)
    class EspalierLoader(HfQuantizer):
        restorer: Any = None

        def update_attn_implementation(self, config: Any) -> Any:
            # The one moment before transformers looks for the weights: a sparse folder names its own file.
            if getattr(self.quantization_config, "sparse", False):
                config.transformers_weights = SPARSE
            return config

        def _process_model_before_weight_loading(
            self, model: Any, checkpoint_files: Any = None, **kwargs: Any
        ) -> None:
            put_on(model, vars(self.quantization_config))
            if getattr(self.quantization_config, "sparse", False):
                self.restorer = restorer(checkpoint_files)
            self.sizes = {name: tuple(p.shape) for name, p in model.named_parameters()}

        def update_weight_conversions(self, weight_conversions: Any, model: Any) -> Any:
            first = self.restorer.conversions() if self.restorer else ()
            return [*first, *super().update_weight_conversions(weight_conversions, model)]

        def get_new_dtype(self, converter: Any, param: Any, dtype: Any) -> Any:
            if self.restorer and self.restorer.is_part(converter, dtype):
                return None
            return super().get_new_dtype(converter, param, dtype)

        def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
            if self.restorer:
                self.restorer.finish(model)
                model.config.__dict__.pop("transformers_weights", None)
            # transformers does not compare sizes once a third party has a hand in loading.
            for name, p in model.named_parameters():
                if tuple(p.shape) != self.sizes.get(name, tuple(p.shape)):
                    raise ValueError(
                        f"{name} has size {tuple(p.shape)} in the file and {self.sizes[name]} in the model. "
                        "For another head on top, load the model first and then replace its head"
                    )
            # It is an ordinary, trainable model of another shape: leave no sign of a quantised one.
            for name in ("hf_quantizer", "quantization_method", "is_quantized"):
                if name in model.__dict__:
                    delattr(model, name)
            for module in model.modules():
                getattr(getattr(module, "config", None), "__dict__", {}).pop("_is_quantized", None)
            record = self.quantization_config.to_dict()
            record.pop("sparse", None)
            model.config.quantization_config = record
            if self.restorer and not record["skeleton"]["shapes"]:  # stored sparse, never cut
                del model.config.quantization_config
            if __name__.startswith(METHOD):  # espalier is here: the folder's own code is not needed
                model.config.__dict__.pop("auto_map", None)
            return model

        def is_serializable(self) -> bool:
            return True

        @property
        def is_trainable(self) -> bool:
            return True


# Below: the classes this folder's config.json names, and the loader they need.
register()


class BertForMaskedLM(transformers.BertForMaskedLM):
    """BertForMaskedLM, cut."""


class BertForMultipleChoice(transformers.BertForMultipleChoice):
    """BertForMultipleChoice, cut."""


class BertForNextSentencePrediction(transformers.BertForNextSentencePrediction):
    """BertForNextSentencePrediction, cut."""


class BertForPreTraining(transformers.BertForPreTraining):
    """BertForPreTraining, cut."""


class BertForQuestionAnswering(transformers.BertForQuestionAnswering):
    """BertForQuestionAnswering, cut."""


class BertForSequenceClassification(transformers.BertForSequenceClassification):
    """BertForSequenceClassification, cut."""


class BertForTokenClassification(transformers.BertForTokenClassification):
    """BertForTokenClassification, cut."""


class BertLMHeadModel(transformers.BertLMHeadModel):
    """BertLMHeadModel, cut."""


class BertModel(transformers.BertModel):
    """BertModel, cut."""
