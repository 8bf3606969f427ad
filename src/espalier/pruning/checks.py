"""Whether a mask or a plan fits a model, and whether its sites can be cut."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..architectures.site import Site, WeightSite
from ..core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from ..core.mask import Mask
from ..core.plan import Plan
from ..core.types import PreTrainedModel


def check_mask(mask: Mapping[str, Tensor], found: Mapping[str, Site | WeightSite]) -> Mask:
    """Return the mask if it fits the sites, else raise."""
    if not isinstance(mask, Mapping) or not mask:
        raise InvalidValueError(
            f"`mask` is a Mask or a Plan that names at least one site; got {type(mask).__name__}", "mask"
        )
    for name, m in mask.items():
        if name not in found:
            more = "cut() takes masks of heads and neurons, zero() those of single weights."
            raise UnknownNameError("site of this model", name, found, "mask", more)
        site = found[name]
        if tuple(m.shape) == site.shape:
            continue
        reason = "A Mask counts the units that are left, a Plan those of the unpruned model"
        if isinstance(site, Site) and site.group > 1 and m.numel() == site.units * site.group:
            reason = f"A unit is a group of {site.group} query heads that share keys and values"
        raise InvalidValueError(
            f"{name} has shape {site.shape}, its `mask` {tuple(m.shape)}. {reason}", "mask"
        )
    return Mask(mask)


def mask_of_plan(plan: Plan, before: Plan, found: Mapping[str, Site]) -> Mask:
    """Return the plan as a mask of the units that the model still has."""
    mask = Mask()
    for name, kept in plan.keep.items():
        if name not in found:
            raise UnknownNameError("site of this model", name, found, "plan")
        units = before.units.get(name, found[name].units)
        left = before.keep.get(name, list(range(units)))
        removed = sorted(set(kept) - set(left))
        if plan.units[name] != units or removed:
            raise InvalidValueError(
                f"the plan does not fit this model: {name} had {units} units, of which {len(left)} are left; "
                f"the plan counts {plan.units[name]} and keeps {kept}",
                "plan",
            )
        mask[name] = torch.tensor([unit in set(kept) for unit in left], dtype=torch.bool)
    return mask


def check_cuttable(model: PreTrainedModel, site: Site) -> None:
    """Raise if a site cannot be cut: adapters, parametrizations, gates or devices stand against it."""
    if site.spec.uncuttable:
        raise UnsupportedError(
            f"{site.name} of {model.config.model_type} can be gated but not cut: {site.spec.uncuttable}"
        )
    for role, place in site.places.items():
        module, path = site.module(role), f"{site.path}.{place.module}"
        if not (isinstance(module, nn.Linear) or hasattr(module, "nf")):
            raise UnsupportedError(
                f"{path} is a {type(module).__name__}, not a linear layer. "
                "If it carries an adapter, merge it first: model = model.merge_and_unload()"
            )
        if not isinstance(module._parameters.get("weight"), nn.Parameter):
            raise UnsupportedError(
                f"the weight of {path} is computed from others, by a mask or a parametrization. "
                "Make it an ordinary one first: torch.nn.utils.prune.remove(module, 'weight')"
            )
    if any(hasattr(hook, "is_gate") for hook in site.module("write")._forward_pre_hooks.values()):
        raise UnsupportedError("the model is gated: leave the `with masked(...)` block, then cut")
    if any(hasattr(module, "_hf_hook") for module in site.block.modules()):
        raise UnsupportedError("the model is spread over devices: cut it first, then dispatch the result")
