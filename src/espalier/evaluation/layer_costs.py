"""The cost of a model layer by layer: in closed form from its sites, and counted while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import Site, input_axis
from ..architectures.sites import blocks, unwrapped
from ..architectures.sites import sites as find_sites
from ..architectures.table import architecture_of
from ..core.errors import UnsupportedError
from ..core.types import PreTrainedModel
from .operators import Operator, attention_products, linear, total

EMBEDDINGS, NORMS, REST = "embeddings", "norms and biases", "head"


@dataclass(frozen=True)
class LayerCost:
    """The cost of one row: a site, or what lies outside of all sites."""

    name: str
    target: str  # heads, neurons, slots, or empty
    units: int
    parameters: int
    macs: int | None  # None: not known without running the model
    maps: int = 0  # of the MACs, those of attention maps, which have no weights
    zeros: int = 0  # MACs of weights that are zero
    activations: int = 0  # the most elements that one of its operations reads and writes


def list_costs(model: PreTrainedModel, *, tokens: int = 128, batch_size: int = 1) -> list[LayerCost]:
    """Return a row for every site, in closed form, and rows for everything else; it may be on meta."""
    rows = [_cost_of(site, tokens, batch_size) for site in find_sites(model) if site.target != "slots"]
    outside = count_outside(model, tokens, batch_size)
    return rows + [
        LayerCost(name, "", 0, numbers, macs, activations=largest)
        for name, (numbers, macs, largest) in outside.items()
    ]


def operators_of(site: Site, tokens: int, batch_size: int = 1) -> tuple[list[Operator], Operator]:
    """Return the linear layers of a site, and the products of its attention."""
    rows, layers = batch_size * tokens, []
    for role in site.places:
        module = site.module(role)
        inner, width = site.index(role).numel(), module.weight.shape[1 - site.axis(role)]
        biased = getattr(module, "bias", None) is not None
        inputs, outputs = (inner, width) if role == "write" else (width, inner)
        layers.append(linear(inputs, outputs, rows, bias=biased))
    if site.target != "heads":
        return layers, Operator(0)
    heads, size = site.units * site.group, site.sizes["d"]
    return layers, attention_products(batch_size, tokens, tokens, heads, size, site.spec.products)


def _cost_of(site: Site, tokens: int, batch_size: int) -> LayerCost:
    layers, products = operators_of(site, tokens, batch_size)
    both, uses = total([*layers, products]), site.uses
    numbers = sum(p.numel() for role in site.places for p in site.module(role).parameters(recurse=False))
    zero = 0
    if not any(weight.is_meta for weight in site.matrices):
        zero = uses * batch_size * tokens * sum(int((weight == 0).sum()) for weight in site.matrices)
    products_macs = uses * products.macs
    return LayerCost(
        *(site.name, site.target, site.units, numbers, uses * both.macs, products_macs, zero),
        activations=both.activations,
    )


def count_outside(
    model: PreTrainedModel, tokens: int, batch_size: int = 1
) -> dict[str, tuple[int, int | None, int]]:
    """Return (parameters, MACs, largest activations) of embeddings, of norms and biases, and of the head.

    How many tokens a head reads is seen by running the model; on meta this costs nothing.
    """
    inside = {id(p) for site in find_sites(model) for role in site.places for p in _own(site.module(role))}
    within = {id(p) for _, block in blocks(model, architecture_of(model)) for p in block.parameters()}
    found = dict.fromkeys((EMBEDDINGS, NORMS, REST), 0)
    groups: dict[int, str] = {}
    for path, module in model.named_modules():
        for p in _own(module):
            if id(p) in inside or id(p) in groups:
                continue
            last = type(module).__name__.lower()
            name = NORMS if "norm" in last or id(p) in within else REST
            if isinstance(module, (nn.Embedding, nn.modules.conv._ConvNd)) or "embed" in path.lower():
                name = EMBEDDINGS if name == REST else name
            groups[id(p)] = name
            found[name] += p.numel()
    try:
        counted = count_macs(model, sample_inputs(model, batch_size, tokens))
    except Exception:  # not every model runs without weights
        out = getattr(model, "get_output_embeddings", lambda: None)()
        if out is None or not isinstance(out, nn.Linear):
            return {name: (n, None if name == REST and n else 0, 0) for name, n in found.items()}
        one = linear(out.in_features, out.out_features, batch_size * tokens)
        counted = {"": [(out, one)]}
    outside: dict[str, list[Operator]] = {name: [] for name in found}
    for operators in counted.values():
        for module, one in operators:
            if hasattr(module, "weight") and id(module.weight) not in inside:
                outside[groups.get(id(module.weight), REST)].append(one)
    sums = {name: total(operators) for name, operators in outside.items()}
    return {name: (n, sums[name].macs, sums[name].activations) for name, n in found.items()}


def _own(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parameters(recurse=False))


def count_macs(model: PreTrainedModel, given: Mapping[str, Any]) -> dict[str, list[tuple[Any, Operator]]]:
    """Run the model and return what each linear layer, convolution and attention did, by path.

    Attention is listed under the path of its site, with what its writer was given.
    """
    found: dict[str, list[tuple[Any, Operator]]] = {}

    def watch(path: str, module: Any) -> Any:
        def see(_: nn.Module, args: Any, out: Any) -> None:
            found.setdefault(path, []).append((module, _operator(module, args[0], out)))

        return see

    def attend(site: Site) -> Any:
        def see(_: nn.Module, args: Any) -> None:
            x = args[0]  # [batch, tokens, channels]; OPT flattens the first two
            batch = next(v.shape[0] for v in given.values() if isinstance(v, Tensor))
            tokens = x.numel() // x.shape[-1] // batch if x.shape[-1] else 0
            heads, size = site.units * site.group, site.sizes["d"]
            one = attention_products(batch, tokens, tokens, heads, size, site.spec.products)
            found.setdefault(site.name, []).append((site.attention, one))

        return see

    layers = (nn.Linear, nn.modules.conv._ConvNd)
    with torch.no_grad(), ExitStack() as hooks:
        for path, module in unwrapped(model).named_modules():
            if isinstance(module, layers) or hasattr(module, "nf"):
                hooks.enter_context(module.register_forward_hook(watch(path, module)))
        for site in find_sites(model):
            if site.target == "heads":
                hooks.enter_context(site.module("write").register_forward_pre_hook(attend(site)))
        model(**given)
    return found


def _operator(module: Any, x: Tensor, out: Tensor) -> Operator:
    biased = getattr(module, "bias", None) is not None
    if isinstance(module, nn.modules.conv._ConvNd):
        weights = sum(p.numel() for p in _own(module))
        return Operator(out.numel() * module.weight[0].numel(), weights, x.numel(), out.numel())
    inputs = int(module.weight.shape[input_axis(module)])
    outputs = int(module.weight.shape[1 - input_axis(module)])
    return linear(inputs, outputs, out.numel() // max(1, outputs) if outputs else 0, bias=biased)


def sample_inputs(model: PreTrainedModel, batch_size: int, tokens: int) -> dict[str, Any]:
    """Return inputs of the right shapes on the model's device: ids of a token, or an image of zeros."""
    takes, config = signature(model.forward).parameters, model.config
    device = next(model.parameters()).device
    out: dict[str, Any] = {}
    if "pixel_values" in takes:
        vision = getattr(config, "vision_config", config)
        sides = vision.image_size if isinstance(vision.image_size, (list, tuple)) else [vision.image_size] * 2
        channels = getattr(vision, "num_channels", 3)
        out["pixel_values"] = torch.zeros(batch_size, channels, *sides, device=device)
    if "input_ids" in takes:
        out["input_ids"] = torch.full((batch_size, tokens), 1, device=device)
    if not out:
        raise UnsupportedError(f"{type(model).__name__} reads neither tokens nor images")
    if "decoder_input_ids" in takes:
        out["decoder_input_ids"] = torch.full((batch_size, tokens), 1, device=device)
    if "use_cache" in takes:
        out["use_cache"] = False
    return out


def tokens_of(model: PreTrainedModel, tokens: int) -> int:
    """Return how many tokens the blocks read: `tokens` of a text, all patches of an image."""
    config = model.config
    patch, image = getattr(config, "patch_size", None), getattr(config, "image_size", None)
    if patch is None or image is None or hasattr(config, "vision_config"):
        return tokens
    sides = image if isinstance(image, (list, tuple)) else [image] * 2
    patches = patch if isinstance(patch, (list, tuple)) else [patch] * 2
    first = 2 if config.model_type == "deit" else 1
    return first + (sides[0] // patches[0]) * (sides[1] // patches[1])
