"""Cutting. The only file that changes the shape or the value of a weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from . import skeleton
from .anatomy import Site, WeightSite, anatomy_of, formula, sites
from .core import Mask, Plan, log
from .errors import EspalierError, suggest
from .measure import TOKENS, cost, parameters


def cut(model: Any, what: Mask | Plan, *, tokens: int = TOKENS, report: bool = True) -> Any:
    """Remove every closed unit, in place, and check that exactly the predicted parameters left.

    A `Mask` is in the numbering of the model as it is now, a `Plan` in that of the unpruned one, so a plan
    can be cut in steps. The model remembers what it lost: see `plan_of`.
    """
    before = plan_of(model)
    found = {site.name: site for site in sites(model)}
    mask = _numbered_now(what, before, found) if isinstance(what, Plan) else what
    _check(mask, found)
    doomed = [found[name] for name in mask if not mask[name].all()]
    if not doomed:
        log.warning("nothing to cut: the mask keeps every unit")
        return model
    for site in doomed:
        _check_cuttable(model, site)

    old, count = (cost(model, tokens) if report else None), parameters(model)
    gone = sum(int((~mask[s.name]).sum()) * s.parameters_per_unit() for s in doomed)
    plan = before.then(Plan.of(mask, **(what.origin if isinstance(what, Plan) else {})))
    with torch.no_grad():
        for site in doomed:
            _cut_site(site, mask[site.name], plan)
    if count - parameters(model) != gone:
        raise EspalierError(
            f"{count - parameters(model):,} parameters left the model and not {gone:,}, as the plan says. "
            f"Its anatomy is wrong; see: espalier check anatomy {model.config.model_type}"
        )
    _remember(model, plan)
    if old is not None:
        log.info(old.to(cost(model, tokens)))
    return model


def zero(model: Any, mask: Mask) -> Any:
    """Set every closed weight to zero, in place. The shape stays, so the model is no faster."""
    found = {site.name: site for site in sites(model, "weights")}
    _check(mask, found)
    with torch.no_grad():
        for name, m in mask.items():
            found[name].linear.weight.mul_(m.to(found[name].linear.weight))
    return model


def prune_heads(model: Any, heads: Mapping[int | str, Iterable[int]]) -> Any:
    """Remove `{layer: [heads]}`, numbered as in the unpruned model: transformers 4's `model.prune_heads`.

    Heads that are gone already may be named again, as there. Where queries are grouped the heads of a
    layer are its key-value groups. Encoder-decoders have no single row of layers: name the sites instead.
    """
    found = sites(model, "heads")
    if len(anatomy_of(model).stacks) > 1 and any(isinstance(k, int) for k in heads):
        stacks = {site.path.rpartition(".")[0] + site.part.name for site in found}
        if len(stacks) > 1:
            raise EspalierError(
                f"{model.config.model_type} has several rows of layers; layer {next(iter(heads))} could be "
                f"any of them. Name the site instead: prune_heads(model, {{{found[-1].name!r}: [0]}})"
            )
    plan = plan_of(model)
    units = {site.name: plan.units.get(site.name, site.units) for site in found}
    keep = {name: set(plan.keep.get(name, range(n))) for name, n in units.items()}
    for layer, closed in heads.items():
        if isinstance(layer, int) and not 0 <= layer < len(found):
            raise EspalierError(f"no layer {layer}: there are {len(found)}, 0 to {len(found) - 1}")
        name = found[layer].name if isinstance(layer, int) else layer
        if name not in keep:
            raise EspalierError(f"no heads at {name!r}{suggest(name, keep)}")
        for head in closed:
            if not 0 <= head < units[name]:
                site = next(s for s in found if s.name == name)
                raise EspalierError(_no_such_head(name, head, units[name], site.group))
            keep[name].discard(head)
    return cut(model, Plan({n: sorted(k) for n, k in keep.items()}, units))


def plan_of(model: Any) -> Plan:
    """What the model has lost so far, in the numbering of the unpruned one. Empty for an unpruned model."""
    record = getattr(model.config, "quantization_config", None)
    if isinstance(record, Mapping) and record.get("quant_method") == skeleton.METHOD:
        return Plan.from_dict(record["plan"])
    return Plan({}, {})


# ------------------------------------------------------------------------------------------ one site


def _cut_site(site: Site, mask: Tensor, plan: Plan) -> None:
    keep = mask.nonzero().flatten().cpu()
    for place in site.places:
        module, axis = site.module(place), site.axis(place)
        index = site.index(place)[keep].flatten().sort().values.to(module.weight.device)
        _narrow(module.weight, axis, index)
        if place != "write" and getattr(module, "bias", None) is not None:
            _narrow(module.bias, 0, index)
        skeleton.refit(module)
        if hasattr(module, "nf") and not module.nx:
            skeleton.graft(module, {"as": ["Unfed"]})
    if site.kind == "heads":
        values = {**site.sizes, "u": len(keep)}
        for name, text in site.part.sync.items():
            skeleton.set_attribute(site.block, f"{site.part.module}.{name}", formula(text, values))
        skeleton.graft(site.attention, _grafts(site, plan))


def _narrow(parameter: nn.Parameter, axis: int, index: Tensor) -> None:
    # The Parameter stays the same object: whoever else holds it (a tied module, a list) sees the cut.
    parameter.grad = None
    parameter.data = parameter.data.index_select(axis, index)


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
    config = model.config
    config.quantization_config = {
        "quant_method": skeleton.METHOD,
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
        if site.kind == "heads" and hasattr(site.attention, "grafted"):
            grafts[owner] = site.attention.grafted
    return {"shapes": shapes, "attributes": attributes, "grafts": grafts}


# ------------------------------------------------------------------------------------------ checks


def _check(mask: Mask, found: Mapping[str, Site | WeightSite]) -> None:
    if not isinstance(mask, Mapping):
        raise EspalierError(f"cut takes a Mask or a Plan; got {type(mask).__name__}")
    if not mask:
        raise EspalierError("the mask is empty: it names no site, so nothing would be cut")
    for name, m in mask.items():
        if name not in found:
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
            message += (
                "A Mask counts the units that are left; a Plan counts those of the unpruned model"
            )
        raise EspalierError(message)


def _check_cuttable(model: Any, site: Site) -> None:
    if site.part.uncuttable:
        raise EspalierError(
            f"{site.name} of {model.config.model_type} can be gated but not cut: {site.part.uncuttable}"
        )
    record = getattr(model.config, "quantization_config", None)
    if record is not None and not (
        isinstance(record, Mapping) and record.get("quant_method") == skeleton.METHOD
    ):
        raise EspalierError("the model is quantised. Cut it first, then quantise what is left")
    for place in site.places:
        module = site.module(place)
        if not (isinstance(module, nn.Linear) or hasattr(module, "nf")):
            raise EspalierError(
                f"{site.path}.{site.places[place].path} is a {type(module).__name__}, not a linear layer. "
                "If it carries an adapter, merge it first: model = model.merge_and_unload()"
            )


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
            raise EspalierError(
                f"the plan keeps unit {gone[0]} of {name}, which has been cut already"
            )
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
