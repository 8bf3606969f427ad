"""Cutting. The only file that changes the shape or the value of a weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import index
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.layout import formula
from ..architectures.site import Site, WeightSite
from ..architectures.table import architecture_of, sites
from ..core.errors import EspalierError, suggest
from ..core.log import log
from ..core.mask import Mask
from ..core.plan import Plan
from ..evaluation.cost import TOKENS, cost, parameters
from . import skeleton


def cut(model: Any, what: Mask | Plan, *, tokens: int = TOKENS, report: bool = True) -> Any:
    """Remove every closed unit, in place, and check that exactly the predicted parameters left.

    A `Mask` is in the numbering of the model as it is now, a `Plan` in that of the unpruned one, so a plan
    can be cut in steps. The model remembers what it lost: see `plan_of`. Weights that were cut are new
    parameters, so make the optimiser afterwards. A mask that keeps everything changes nothing and says so.
    """
    found = {site.name: site for site in sites(model)}
    before = plan_of(model)
    mask = _numbered_now(what, before, found) if isinstance(what, Plan) else _checked(what, found)
    doomed = [found[name] for name in mask if not mask[name].all()]
    if not doomed:
        log.warning("nothing to cut: the mask keeps every unit")
        return model
    for site in doomed:
        _check_cuttable(model, site)

    old, count = (cost(model, tokens) if report else None), parameters(model)
    gone = sum(int((~mask[s.name]).sum()) * s.parameters_per_unit() for s in doomed)
    plan = before.then(Plan.of(mask, **(what.origin if isinstance(what, Plan) else {})))
    owners = _owners(model)
    with torch.inference_mode(False), torch.no_grad():
        for site in doomed:
            _cut_site(site, mask[site.name], plan, owners)
    if count - parameters(model) != gone:
        raise EspalierError(
            f"{count - parameters(model):,} parameters left the model and not {gone:,}, as the plan says. "
            f"Its architecture is wrong; see: espalier check architecture {model.config.model_type}"
        )
    _remember(model, plan)
    if old is not None:
        log.info(old.to(cost(model, tokens)))
    return model


def zero(model: Any, mask: Mask) -> Any:
    """Set every closed weight to zero, in place. The shape stays, so the model is no faster."""
    everywhere = sites(model, "weights", embeddings=True, head=True, norms=True)
    found = {site.name: site for site in everywhere}
    mask = _checked(mask, found)
    if all(m.all() for m in mask.values()):
        log.warning("nothing to zero: the mask keeps every weight")
    with torch.no_grad():
        for name, m in mask.items():
            weight = found[name].linear.weight
            weight.masked_fill_(~m.bool().to(weight.device), 0)  # times zero would leave half of them −0.0
    return model


def rewrite(site: WeightSite, weight: Tensor) -> None:
    """Give a matrix other values, in place."""
    with torch.no_grad():
        site.linear.weight.copy_(weight)


def prune_heads(model: Any, heads: Mapping[int | str, Iterable[int]]) -> Any:
    """Remove `{layer: [heads]}`, numbered as in the unpruned model: transformers 4's `model.prune_heads`.

    Heads that are gone already may be named again, as there. Where queries are grouped the heads of a
    layer are its key-value groups. Layers are numbered along self-attention; for cross-attention, and for
    encoder-decoders, which have two rows of layers, name the site. Make the optimiser afterwards.
    """
    found = {site.name: site for site in sites(model, "heads")}
    layers = [site for site in found.values() if site.part.name == "heads"]
    rows = (
        {site.path.rpartition(".")[0] for site in layers} if len(architecture_of(model).stacks) > 1 else {""}
    )
    plan = plan_of(model)
    units = {name: plan.units.get(name, site.units) for name, site in found.items()}
    keep = {name: set(plan.keep.get(name, range(n))) for name, n in units.items()}
    if not isinstance(heads, Mapping):
        raise EspalierError(f"prune_heads takes {{layer: [heads]}}; got {type(heads).__name__}")
    for layer, closed in heads.items():
        if isinstance(layer, str) and layer.isdigit():  # JSON has no other keys
            layer = int(layer)
        if not isinstance(layer, str):
            name = _layer_name(model, layer, layers, len(rows))
        elif layer in keep:
            name = layer
        else:
            raise EspalierError(f"no heads at {layer!r}{suggest(layer, keep)}")
        for head in _numbers(closed, name):
            if not 0 <= head < units[name]:
                raise EspalierError(_no_such_head(name, head, units[name], found[name].group))
            keep[name].discard(head)
    return cut(model, Plan({n: sorted(k) for n, k in keep.items()}, units))


def record_of(model: Any) -> dict[str, Any] | None:
    """What a config remembers of a cut, or None. Another quantisation's record is an error."""
    record = getattr(getattr(model, "config", None), "quantization_config", None)
    if record is None:
        return None
    if not skeleton.is_ours(record):
        raise EspalierError("the model is quantised. Cut and save it first, then quantise what is left")
    return record


def plan_of(model: Any) -> Plan:
    """What the model has lost so far, in the numbering of the unpruned one. Empty for an unpruned model."""
    record = record_of(model)
    if record is None:
        return Plan({}, {})
    plan = Plan.from_dict(record.get("plan") or {})
    for site in sites(model):
        if len(plan.keep.get(site.name, range(site.units))) != site.units:
            raise EspalierError(
                f"the config remembers a cut that this model has not had: {site.name} has {site.units} "
                f"units, not {len(plan.keep[site.name])}. Two models share one config; give each its own: "
                "copy.deepcopy(config)"
            )
    return plan


# ------------------------------------------------------------------------------------------ one site

Owners = dict[int, list[tuple[nn.Module, str]]]


def _owners(model: nn.Module) -> Owners:
    """Who holds each parameter: tied ones have several owners, and all must get the new one."""
    found: Owners = {}
    for module in model.modules():
        for name, p in module._parameters.items():
            if p is not None:
                found.setdefault(id(p), []).append((module, name))
    return found


def _cut_site(site: Site, mask: Tensor, plan: Plan, owners: Owners) -> None:
    keep = mask.nonzero().flatten().cpu()
    for place in site.places:
        module, axis = site.module(place), site.axis(place)
        left = site.index(place)[keep].flatten().sort().values.to(module.weight.device)
        _narrow(module.weight, axis, left, owners)
        if place != "write" and getattr(module, "bias", None) is not None:
            _narrow(module.bias, 0, left, owners)
        skeleton.refit(module)
        if hasattr(module, "nf") and not module.nx:
            skeleton.graft(module, {"as": ["Unfed"]})
    if site.target == "heads":
        values = {**site.sizes, "u": len(keep)}
        for name, text in site.part.sync.items():
            skeleton.set_attribute(site.block, f"{site.part.module}.{name}", formula(text, values))
        skeleton.graft(site.attention, _grafts(site, plan))


def _narrow(old: nn.Parameter, axis: int, left: Tensor, owners: Owners) -> None:
    # A new Parameter, not new data in the old one: autograd keeps the old size while a graph is alive.
    new = nn.Parameter(old.data.index_select(axis, left), requires_grad=old.requires_grad)
    for module, name in owners.pop(id(old)):
        setattr(module, name, new)
        owners.setdefault(id(new), []).append((module, name))


def _grafts(site: Site, plan: Plan) -> dict[str, Any]:
    """How the attention must behave from now on, if differently."""
    part, kept = site.part, plan.keep[site.name]
    following = bool(part.follow) and (bool(kept) or part.shared)
    names = (["SharedBias" if part.shared else "Narrowed"] if following else []) + (
        [] if kept else ["Headless"]
    )
    grafted: dict[str, Any] = {"as": names}
    if following:
        grafted |= {"argument": part.follow, "heads": plan.units[site.name], "kept": kept}
    if not kept:
        grafted |= {"tail": part.tail}
    return grafted


# ------------------------------------------------------------------------------------------ the record


def _remember(model: Any, plan: Plan) -> None:
    """Write plan and skeleton into the config, where `save_pretrained` and `from_pretrained` find them."""
    model.config.quantization_config = {
        "quant_method": skeleton.METHOD,
        "version": skeleton.VERSION,
        "plan": plan.to_dict(),
        "skeleton": skeleton_of(model, plan),
    }


def skeleton_of(model: Any, plan: Plan) -> dict[str, Any]:
    """The three tables of skeleton.py, read off the cut model."""
    shapes: dict[str, list[int]] = {}
    attributes: dict[str, int] = {}
    grafts: dict[str, Any] = {}
    for site in sites(model):
        if len(plan.keep.get(site.name, ())) == plan.units.get(site.name, 0):
            continue
        for at in site.places.values():
            path, module = at.path.rstrip("?"), site.block.get_submodule(at.path.rstrip("?"))
            for name, parameter in module.named_parameters():
                shapes[f"{site.path}.{path}.{name}"] = list(parameter.shape)
            if hasattr(module, "grafted"):
                grafts[f"{site.path}.{path}"] = module.grafted
        owner = f"{site.path}.{site.part.module}"
        for name in site.part.sync:
            value = skeleton.get_attribute(site.block, f"{site.part.module}.{name}")
            attributes[f"{owner}.{name}"] = int(value)
        if site.target == "heads" and hasattr(site.attention, "grafted"):
            grafts[owner] = site.attention.grafted
    return {"shapes": shapes, "attributes": attributes, "grafts": grafts}


# ------------------------------------------------------------------------------------------ checks


def _checked(mask: Any, found: Mapping[str, Site | WeightSite]) -> Mask:
    if not isinstance(mask, Mapping):
        raise EspalierError(f"a Mask or a Plan is needed; got {type(mask).__name__}")
    if not mask:
        raise EspalierError("the mask is empty: it names no site, so nothing would be cut")
    for name, m in mask.items():
        if name not in found:
            if m.dim() > 1:
                raise EspalierError(f"{name!r} is masked weight by weight: that is for zero()")
            if isinstance(next(iter(found.values())), WeightSite):
                raise EspalierError(f"{name!r} is masked unit by unit: that is for cut()")
            raise EspalierError(
                f"the mask is for another model: there is no site {name!r} here{suggest(name, found)} "
                f"The first is {next(iter(found))!r}"
            )
        site = found[name]
        if tuple(m.shape) == site.shape:
            continue
        message = f"{name} has shape {site.shape}, its mask {tuple(m.shape)}. "
        if isinstance(site, Site) and site.group > 1 and m.numel() == site.units * site.group:
            message += _groups(site.group)
        else:
            message += "A Mask counts the units that are left; a Plan counts those of the unpruned model"
        raise EspalierError(message)
    return Mask(mask)


def _check_cuttable(model: Any, site: Site) -> None:
    if site.part.uncuttable:
        raise EspalierError(
            f"{site.name} of {model.config.model_type} can be gated but not cut: {site.part.uncuttable}"
        )
    for place in site.places:
        module, path = site.module(place), f"{site.path}.{site.places[place].path.rstrip('?')}"
        if not (isinstance(module, nn.Linear) or hasattr(module, "nf")):
            raise EspalierError(
                f"{path} is a {type(module).__name__}, not a linear layer. "
                "If it carries an adapter, merge it first: model = model.merge_and_unload()"
            )
        if not isinstance(module._parameters.get("weight"), nn.Parameter):
            raise EspalierError(
                f"the weight of {path} is computed from others, by a mask or a parametrization. "
                "Make it an ordinary one first: torch.nn.utils.prune.remove(module, 'weight')"
            )
    if any(hasattr(hook, "is_gate") for hook in site.module("write")._forward_pre_hooks.values()):
        raise EspalierError("the model is gated. Leave the `with masked(...)` block, then cut")
    if any(hasattr(module, "_hf_hook") for module in site.block.modules()):
        raise EspalierError("the model is spread over devices. Cut it first, then dispatch what is left")


def _layer_name(model: Any, layer: Any, layers: list[Site], rows: int) -> str:
    try:
        number = index(layer)
    except TypeError:
        raise EspalierError(f"a layer is a number or a site's name; got {layer!r}") from None
    if rows > 1:
        raise EspalierError(
            f"{model.config.model_type} has several rows of layers; layer {number} could be in any of them. "
            f"Name the site instead: prune_heads(model, {{{layers[-1].name!r}: [0]}})"
        )
    if not 0 <= number < len(layers):
        raise EspalierError(f"no layer {number}: there are {len(layers)}, 0 to {len(layers) - 1}")
    return layers[number].name


def _numbers(closed: Any, name: str) -> list[int]:
    try:
        return [index(head) for head in closed]
    except TypeError:
        raise EspalierError(f"the heads to cut from {name} are a list, [0, 3]; got {closed!r}") from None


def _numbered_now(plan: Plan, before: Plan, found: Mapping[str, Site]) -> Mask:
    """The plan as a mask over what is left of the model."""
    mask = Mask()
    for name, kept in plan.keep.items():
        if name not in found:
            raise EspalierError(
                f"the plan is for another model: there is no site {name!r} here{suggest(name, found)} "
                f"The first is {next(iter(found))!r}"
            )
        units = before.units.get(name, found[name].units)
        if plan.units[name] != units:
            raise EspalierError(
                f"the plan is for another model: {name} has {units} units, not {plan.units[name]}"
            )
        living = before.keep.get(name, list(range(units)))
        gone = sorted(set(kept) - set(living))
        if gone:
            raise EspalierError(f"the plan keeps unit {gone[0]} of {name}, which has been cut already")
        mask[name] = torch.tensor([unit in set(kept) for unit in living], dtype=torch.bool)
    return mask


def _no_such_head(name: str, head: int, units: int, group: int) -> str:
    if group > 1 and head < units * group:
        return (
            f"{name} has {units} key-value groups, so there is no head {head} to cut alone. {_groups(group)} "
            f"Query head {head} is in group {head // group}"
        )
    return f"{name} has no head {head}: it has {units}, 0 to {units - 1}"


def _groups(group: int) -> str:
    return (
        f"Each unit is a group of {group} query heads that share their keys and values; "
        "a single query head cannot leave its group."
    )
