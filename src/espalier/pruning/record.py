"""The record of a cut in a model's config, where `save_pretrained` and `from_pretrained` find it."""

from typing import Any

from ..architectures.sites import sites
from ..core.errors import UnsupportedError
from ..core.plan import Plan
from ..core.types import PreTrainedModel
from . import skeleton


def record_of(model: PreTrainedModel) -> dict[str, Any] | None:
    """Return the record of a cut, None for an unpruned model; raise if it is another quantisation's."""
    record = getattr(getattr(model, "config", None), "quantization_config", None)
    if record is None or skeleton.is_ours(record):
        return record
    raise UnsupportedError("the model is quantised: cut and save it first, then quantise the result")


def plan_of(model: PreTrainedModel) -> Plan:
    """Return what was cut so far, in the numbering of the unpruned model; empty for an unpruned one."""
    record = record_of(model)
    if record is None:
        return Plan({}, {})
    plan = Plan.from_dict(record.get("plan") or {})
    for site in sites(model):
        if len(plan.keep.get(site.name, range(site.units))) != site.units:
            raise UnsupportedError(
                f"the config records another cut than this model has: {site.name} has {site.units} units, "
                f"not {len(plan.keep[site.name])}. Models that share a config need copy.deepcopy(config)"
            )
    return plan


def write_record(model: PreTrainedModel, plan: Plan) -> None:
    """Write the plan and the skeleton of a cut model into its config."""
    model.config.quantization_config = {
        "quant_method": skeleton.METHOD,
        "version": skeleton.VERSION,
        "plan": plan.to_dict(),
        "skeleton": _skeleton_of(model, plan),
    }


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
            for name, parameter in module.named_parameters():
                shapes[f"{path}.{name}"] = list(parameter.shape)
            if hasattr(module, "grafted"):
                grafts[path] = module.grafted
        owner = f"{site.path}.{site.spec.module}"
        for name in site.spec.sync:
            value = skeleton.get_attribute(site.block, f"{site.spec.module}.{name}")
            attributes[f"{owner}.{name}"] = int(value)
        if site.target == "heads" and hasattr(site.attention, "grafted"):
            grafts[owner] = site.attention.grafted
    return {"shapes": shapes, "attributes": attributes, "grafts": grafts}
