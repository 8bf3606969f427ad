"""Cutting: the only file that changes the shape of a weight."""

from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.layout import formula
from ..architectures.site import Site
from ..architectures.sites import sites
from ..core.errors import UnsupportedError
from ..core.log import log
from ..core.mask import Mask
from ..core.plan import Plan
from ..core.types import PreTrainedModel
from ..evaluation.cost import TOKENS, cost, parameters
from . import skeleton
from .checks import check_cuttable, check_mask, mask_of_plan
from .record import plan_of, write_record

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
    found = {site.name: site for site in sites(model)}
    before = plan_of(model)
    kept = mask_of_plan(mask, before, found) if isinstance(mask, Plan) else check_mask(mask, found)
    chosen = [found[name] for name in kept if not kept[name].all()]
    if not chosen:
        log.warning("nothing to cut: the mask keeps every unit")
        return model
    for site in chosen:
        check_cuttable(model, site)

    old, count = (cost(model, tokens) if report else None), parameters(model)
    predicted = sum(int((~kept[s.name]).sum()) * s.parameters_per_unit() for s in chosen)
    plan = before.then(Plan.of(kept, **(mask.origin if isinstance(mask, Plan) else {})))
    owners = _owners(model)
    with torch.inference_mode(False), torch.no_grad():
        for site in chosen:
            _cut_site(site, kept[site.name], plan, owners)
    if count - parameters(model) != predicted:
        raise UnsupportedError(
            f"{count - parameters(model):,} parameters were removed and {predicted:,} predicted: the "
            f"architecture table of {model.config.model_type} is wrong. Check it with espalier.testing"
        )
    write_record(model, plan)
    if old is not None:
        log.info(old.to(cost(model, tokens)))
    return model


def _owners(model: nn.Module) -> Owners:
    """Return which modules hold each parameter: a tied one has several, and all must get the new one."""
    found: Owners = {}
    for module in model.modules():
        for name, p in module._parameters.items():
            if p is not None:
                found.setdefault(id(p), []).append((module, name))
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
            skeleton.graft(module, {"as": ["Unfed"]})
    if site.target == "heads":
        values = {**site.sizes, "u": len(keep)}
        for name, text in site.spec.sync.items():
            skeleton.set_attribute(site.block, f"{site.spec.module}.{name}", formula(text, values))
        skeleton.graft(site.attention, _grafts(site, plan))


def _narrow(old: nn.Parameter, axis: int, left: Tensor, owners: Owners) -> None:
    # A new Parameter, not new data in the old one: autograd keeps the old size while a graph exists.
    new = nn.Parameter(old.data.index_select(axis, left), requires_grad=old.requires_grad)
    for module, name in owners.pop(id(old)):
        setattr(module, name, new)
        owners.setdefault(id(new), []).append((module, name))


def _grafts(site: Site, plan: Plan) -> dict[str, Any]:
    """Return the behaviours that the attention needs after the cut."""
    spec, kept = site.spec, plan.keep[site.name]
    following = bool(spec.follow) and (bool(kept) or spec.shared)
    names = (["SharedBias" if spec.shared else "Narrowed"] if following else []) + (
        [] if kept else ["Headless"]
    )
    grafted: dict[str, Any] = {"as": names}
    if following:
        grafted |= {"argument": spec.follow, "heads": plan.units[site.name], "kept": kept}
    if not kept:
        grafted |= {"tail": spec.tail}
    return grafted
