"""Cutting: the only file that changes the shape of a weight.

What was cut is recorded in the model's config, where `save_pretrained` and `from_pretrained` find it.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import Site
from ..architectures.sites import CUTTABLE, MERGE, UNITS, check_mask, is_stack, is_stacked, sites, unwrapped
from ..architectures.stack import StackSite
from ..architectures.table import formula
from ..core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from ..core.mask import Mask, Plan
from ..core.terminal import log
from ..core.types import PreTrainedModel
from ..evaluation.cost import TOKENS, cost, parameters
from . import skeleton
from .blocks import check_removable, expand, is_gone, remove_parts, skeleton_of_stacks, without_gone
from .grafts import graft

KEPT = torch.ones(1, dtype=torch.bool)
Owners = dict[int, list[tuple[nn.Module, str]]]


def cut(
    model: PreTrainedModel, mask: Mask | Plan, *, tokens: int = TOKENS, report: bool = True
) -> PreTrainedModel:
    """Remove every unit that the mask does not keep, in place, and return the model.

    A `Mask` is in the numbering of the model as it is now, a `Plan` in that of the unpruned one, so a plan
    can be cut in steps; `plan_of` returns what was cut so far. The number of parameters removed is checked
    against the one predicted. Weights that were cut are new parameters: create the optimiser afterwards.
    `report` logs the cost before and after, at `tokens` tokens. A mask that keeps everything warns.
    """
    if unwrapped(model) is not model:
        raise UnsupportedError(f"a {type(model).__name__} wraps the model that would be cut. {MERGE}")
    named = mask.keep if isinstance(mask, Plan) else mask
    whole = isinstance(named, Mapping) and any(is_stacked(str(name)) for name in named)  # blocks, sublayers
    found: dict[str, Site | StackSite] = {s.name: s for s in sites(model, *(CUTTABLE if whole else UNITS))}
    before = plan_of(model)
    kept = _mask_of_plan(mask, before, found) if isinstance(mask, Plan) else check_mask(mask, found)
    kept = expand(kept, found) if whole else kept
    chosen = [site for site in found.values() if not kept.get(site.name, KEPT).all()]
    if not chosen:
        log.warning("nothing to cut: the mask keeps every unit")
        return model
    for site in chosen:
        if isinstance(site, Site):
            _check_cuttable(model, site, whole=not kept[site.name].any())
        else:
            check_removable(model, site, kept[site.name])

    old, count = (cost(model, tokens) if report else None), parameters(model)
    predicted = 0
    plan = before.then(Plan.of(kept, **(mask.origin if isinstance(mask, Plan) else {})))
    plan = without_gone(plan) if whole else plan
    owners = _owners(model)
    with torch.inference_mode(False), torch.no_grad():
        for site in chosen:
            if isinstance(site, Site):
                # as the model is by now: a head that is cut takes its share of the slots with it
                predicted += int((~kept[site.name]).sum()) * site.parameters_per_unit()
                _cut_site(site, kept[site.name], plan, owners)
        if whole:
            predicted += remove_parts(model, [s for s in chosen if isinstance(s, StackSite)], kept)
    if count - parameters(model) != predicted:
        raise UnsupportedError(
            f"{count - parameters(model):,} parameters were removed and {predicted:,} predicted: the "
            f"architecture table of {model.config.model_type} is wrong. Check it with espalier.testing"
        )
    if is_stack(model):
        _separate_config(model)
    write_record(model, plan)
    if old is not None:
        log.info(old.to(cost(model, tokens)))
    return model


def _separate_config(model: PreTrainedModel) -> None:
    """Give a stack a config of its own: the model it is part of would take the record for its own."""
    shared, own = model.config, copy.deepcopy(model.config)
    for module in model.modules():
        if getattr(module, "config", None) is shared:
            module.config = own


def _mask_of_plan(plan: Plan, before: Plan, found: Mapping[str, Site | StackSite]) -> Mask:
    """Return the plan as a mask of the units that the model still has."""
    mask = Mask()
    for name, kept in plan.keep.items():
        if name not in found and is_gone(name, before):
            continue
        if name not in found:
            raise UnknownNameError("site of this model", name, found, "plan")
        units = before.units.get(name, found[name].units)
        left = before.keep.get(name, list(range(units)))
        if plan.units[name] != units or not set(kept) <= set(left):
            raise InvalidValueError(
                f"the plan does not fit this model: {name} had {units} units, of which {len(left)} are left; "
                f"the plan counts {plan.units[name]} and keeps {kept}",
                "plan",
            )
        mask[name] = torch.tensor([unit in set(kept) for unit in left], dtype=torch.bool)
    return mask


def _check_cuttable(model: PreTrainedModel, site: Site, *, whole: bool) -> None:
    """Raise if a site cannot be cut: adapters, parametrizations, gates or devices stand against it."""
    if site.uncuttable and not whole:
        raise UnsupportedError(
            f"{site.name} of {model.config.model_type} can be gated but not cut: {site.uncuttable}"
        )
    for role, place in site.places.items():
        module, path = site.module(role), f"{site.path}.{place.module}"
        if not (isinstance(module, nn.Linear) or hasattr(module, "nf")):
            raise UnsupportedError(f"{path} is a {type(module).__name__}, not a linear layer. {MERGE}")
        if not isinstance(module._parameters.get("weight"), nn.Parameter):
            raise UnsupportedError(
                f"the weight of {path} is computed from others, by a mask or a parametrization. "
                "Make it an ordinary one first: torch.nn.utils.prune.remove(module, 'weight')"
            )
    if any(hasattr(hook, "is_gate") for hook in site.module("write")._forward_pre_hooks.values()):
        raise UnsupportedError("the model is gated: leave the `with masked(...)` block, then cut")
    if any(hasattr(module, "_hf_hook") for module in site.block.modules()):
        raise UnsupportedError("the model is spread over devices: cut it first, then dispatch the result")


def _owners(model: nn.Module) -> Owners:
    """Return which modules hold each parameter: a tied one has several, and all must get the new one."""
    found: Owners = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        owner, _, name = path.rpartition(".")
        found.setdefault(id(parameter), []).append((model.get_submodule(owner), name))
    return found


def _cut_site(site: Site, mask: Tensor, plan: Plan, owners: Owners) -> None:
    keep = mask.nonzero().flatten().cpu()
    for role in site.places:
        module = site.module(role)
        left = site.index(role)[keep].flatten().sort().values.to(module.weight.device)
        _narrow(module.weight, site.axis(role), left, owners)
        if role != "write" and getattr(module, "bias", None) is not None:
            _narrow(module.bias, 0, left, owners)
        skeleton.refit(module)
        if hasattr(module, "nf") and not module.nx:
            graft(module, {"as": ["Unfed"]})
    if site.target == "heads":
        values = {**site.sizes, "u": len(keep)}
        for name, text in site.spec.sync.items():
            skeleton.set_attribute(site.block, f"{site.spec.module}.{name}", formula(text, values))
        graft(site.attention, _grafts(site, plan))


def _narrow(old: nn.Parameter, axis: int, left: Tensor, owners: Owners) -> None:
    # A new Parameter, not new data in the old one: autograd keeps the old size while a graph exists.
    new = nn.Parameter(old.data.index_select(axis, left), requires_grad=old.requires_grad)
    for module, name in owners.pop(id(old)):
        setattr(module, name, new)
        owners.setdefault(id(new), []).append((module, name))


def _grafts(site: Site, plan: Plan) -> dict[str, Any]:
    """Return the behaviours that the attention needs after the cut."""
    spec, kept = site.spec, plan.keep[site.name]
    grafted: dict[str, Any] = {"as": []}
    if spec.follow and (kept or spec.shared):
        grafted["as"].append("SharedBias" if spec.shared else "Narrowed")
        grafted |= {"argument": spec.follow, "heads": plan.units[site.name], "kept": kept}
    if not kept:
        grafted["as"].append("Headless")
        grafted |= {"tail": spec.tail}
    return grafted


def record_of(model: PreTrainedModel) -> dict[str, Any] | None:
    """Return the record of a cut, None for an unpruned model; raise if it is another quantisation's."""
    record = getattr(getattr(model, "config", None), "quantization_config", None)
    seen = _quantised(model) if record is None or skeleton.is_ours(record) else "its config says so"
    if seen:
        raise UnsupportedError(
            f"the model is quantised ({seen}): cut and save it first, then quantise the result"
        )
    return record


def _quantised(model: nn.Module) -> str:
    """Name a weight that is not an ordinary floating-point tensor, or a linear layer that replaces it."""
    for name, p in model.named_parameters():
        if type(p.detach()) is not Tensor or (p.dim() > 1 and not p.is_floating_point()):
            return f"{name} is a {type(p).__name__} of {str(p.dtype).removeprefix('torch.')}"
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and "quant" in type(module).__module__:
            return f"{name} is a {type(module).__name__}"
    return ""


def plan_of(model: PreTrainedModel) -> Plan:
    """Return what was cut so far, in the numbering of the unpruned model; empty for an unpruned one."""
    record = record_of(model)
    if record is None:
        return Plan({}, {})
    plan = Plan.from_dict(record.get("plan") or {})
    for site in sites(model, *(CUTTABLE if any(map(is_stacked, plan.keep)) else UNITS)):
        if len(plan.keep.get(site.name, range(site.units))) != site.units:
            raise UnsupportedError(
                f"the config records another cut than this model has: {site.name} has {site.units} units, "
                f"not {len(plan.keep[site.name])}. Models that share a config need copy.deepcopy(config)"
            )
    return plan


def write_record(model: PreTrainedModel, plan: Plan) -> None:
    """Write the plan and the skeleton of a cut model into its config."""
    model.config.quantization_config = _make_record(plan, {})  # it numbers the blocks that are left
    tables = _skeleton_of(model, plan)
    model.config.quantization_config = _make_record(plan, tables)
    # A tower of CLIP has a config of its own, which is all that is read if it is loaded alone.
    own = [getattr(model.config, name, None) for name in model.config.sub_configs]
    for path, part in model.base_model.named_modules():
        config = getattr(part, "config", None) if path and hasattr(part, "save_pretrained") else None
        if config is not None and any(config is one for one in own):
            keep, units = _below(path, plan.keep), _below(path, plan.units)
            inside = {name: _below(path, table) for name, table in tables.items()}
            if keep:
                config.quantization_config = _make_record(Plan(keep, units, plan.origin), inside)


def _make_record(plan: Plan, tables: dict[str, Any]) -> dict[str, Any]:
    return skeleton.empty_record() | {"plan": plan.to_dict(), "skeleton": tables}


def _below(path: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries below a path, named relative to it."""
    return {n.removeprefix(f"{path}."): v for n, v in table.items() if n.startswith(f"{path}.")}


def _skeleton_of(model: PreTrainedModel, plan: Plan) -> dict[str, Any]:
    """Return the three tables of skeleton.py for a cut model."""
    shapes: dict[str, list[int]] = {}
    attributes: dict[str, int] = {}
    grafts: dict[str, Any] = {}
    for site in sites(model):
        if len(plan.keep.get(site.name, ())) == plan.units.get(site.name, 0):
            continue
        for role, place in site.places.items():
            path, module = f"{site.path}.{place.module}", site.module(role)
            for name, parameter in module._parameters.items():
                shapes[f"{path}.{name}"] = [] if parameter is None else list(parameter.shape)
            if hasattr(module, "grafted"):
                grafts[path] = module.grafted
        owner = f"{site.path}.{site.spec.module}"
        for name in site.spec.sync:
            value = skeleton.get_attribute(site.block, f"{site.spec.module}.{name}")
            attributes[f"{owner}.{name}"] = int(value)
        if site.target == "heads" and hasattr(site.attention, "grafted"):
            grafts[owner] = site.attention.grafted
    tables: dict[str, Any] = {"shapes": shapes, "attributes": attributes, "grafts": grafts}
    if not any(map(is_stacked, plan.keep)):
        return tables
    more = skeleton_of_stacks(model)
    tables["shapes"] |= more.pop("shapes")
    tables["grafts"] |= more.pop("grafts")
    return {**tables, **{name: table for name, table in more.items() if table}}
