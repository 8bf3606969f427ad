"""Removing whole blocks and sublayers: what goes with them, and what the rest of the model is told.

A model without some of its blocks is an ordinary one of fewer layers: its config counts those that are left.
A sublayer is removed with its units, its output bias and the norms that only it uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import Site
from ..architectures.sites import sites
from ..architectures.stack import Part, StackSite
from ..architectures.table import architecture_of
from ..core.errors import UnsupportedError
from ..core.mask import Mask, Plan
from ..core.types import PreTrainedModel
from .grafts import graft

PER_LAYER = ("layer_types",)  # config entries with a value for each layer
AnySite = Site | StackSite


def expand(mask: Mask, found: Mapping[str, AnySite]) -> Mask:
    """Return the mask with what follows from it: a block takes its sublayers along, these their units.

    Units of blocks that go are not named: they go with it.
    """
    out, gone = Mask(mask), set[int]()
    stacks = [site for site in found.values() if isinstance(site, StackSite)]
    for site in stacks:
        if site.target == "layers" and not out.get(site.name, torch.ones(1)).all():
            gone |= {id(part.block) for part, kept in zip(site.parts, out[site.name]) if not kept}
            for other in (one for one in stacks if one.path == site.path and one is not site):
                stays = torch.tensor([id(part.block) not in gone for part in other.parts], dtype=torch.bool)
                out[other.name] = out.get(other.name, torch.ones_like(stays)) & stays
    for site in stacks:
        for part, kept in zip(site.parts, out.get(site.name, ())) if site.target != "layers" else ():
            if not kept and part.sublayer is not None:
                out[part.sublayer.name] = torch.zeros(part.sublayer.shape, dtype=torch.bool)
    of_gone = {site.name for site in found.values() if isinstance(site, Site) and id(site.block) in gone}
    return Mask({name: kept for name, kept in out.items() if name not in of_gone})


def check_removable(model: PreTrainedModel, site: StackSite, mask: Tensor) -> None:
    """Raise if blocks cannot be removed from this model."""
    if site.target != "layers":
        return
    if site.uncuttable:
        raise UnsupportedError(
            f"{site.name} of {model.config.model_type} cannot be removed: {site.uncuttable}"
        )
    config, entry = _counter(model, site)
    if getattr(config, entry, None) != site.units:
        raise UnsupportedError(
            f"{site.name} has {site.units} blocks and config.{entry} is {getattr(config, entry, None)}: the "
            "table must name the entry that counts them, Architecture(counts={path: entry})"
        )


def remove_parts(model: PreTrainedModel, chosen: Sequence[StackSite], kept: Mask) -> int:
    """Remove blocks and what is left of sublayers without units; return the parameters that go with them."""
    gone = {id(part.block) for site in chosen if site.target == "layers" for part in _removed(site, kept)}
    count = 0
    for site in chosen:
        for part in _removed(site, kept) if site.target != "layers" else ():
            if id(part.block) not in gone:
                count += sum(p.numel() for _, _, p in _beyond_units(part))
                _silence(part)
    for site in chosen:
        if site.target == "layers":
            inherited = _remove_blocks(model, site, kept[site.name])
            going = {id(p): p for part in _removed(site, kept) for p in part.parameters}
            count += sum(p.numel() for key, p in going.items() if key not in inherited)
    return count


def _removed(site: StackSite, kept: Mask) -> list[Part]:
    return [part for part, stays in zip(site.parts, kept[site.name]) if not stays]


def _beyond_units(part: Part) -> list[tuple[nn.Module, str, nn.Parameter]]:
    assert part.sublayer is not None
    modules = [part.block.get_submodule(path) for path in part.private]
    named = [
        (module, name, p)
        for top in modules
        for module in top.modules()
        for name, p in module.named_parameters(recurse=False)
    ]
    writer = part.sublayer.module("write")
    bias = getattr(writer, "bias", None)
    return [*named, *([] if bias is None else [(writer, "bias", bias)])]


def _silence(part: Part) -> None:
    """Remove what a sublayer without units still holds: its output bias, and norms that only it uses."""
    for module, name, _ in _beyond_units(part):
        setattr(module, name, None)
    for path in part.private:
        graft(part.block.get_submodule(path), {"as": ["Absent"]})


def _remove_blocks(model: PreTrainedModel, site: StackSite, mask: Tensor) -> set[int]:
    """Remove blocks from their list, number the others anew and tell the config.

    Returns the ids of the parameters that the new first block takes over from the old one.
    """
    table, stack = architecture_of(model), model.base_model.get_submodule(site.path)
    left, inherited = [part.block for part, kept in zip(site.parts, mask) if kept], set[int]()
    if left and not mask[0]:
        for path in table.inherited:
            inherited |= _inherit(site.parts[0].block, left[0], path)
    stack._modules.clear()
    for number, block in enumerate(left):
        stack._modules[str(number)] = block
        for module in block.modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                module.layer_idx = number  # type: ignore[assignment]
    config, entry = _counter(model, site)
    owner: Any = model.base_model.get_submodule(site.path.rpartition(".")[0])
    for one in {id(c): c for c in (config, getattr(owner, "config", config))}.values():
        counter = entry if one is config else "num_hidden_layers"  # the stack of a T5 has its own
        for name in PER_LAYER:
            types = getattr(one, name, None)
            if isinstance(types, list) and len(types) == len(mask):
                setattr(one, name, [value for value, kept in zip(types, mask) if kept])
        setattr(one, counter, len(left))
        _rename_stages(one, mask)
    return inherited


def _rename_stages(config: Any, mask: Tensor) -> None:
    """Let a backbone return what its last block below a removed one writes in place of that one's output."""
    names = getattr(config, "stage_names", None)
    if isinstance(names, list) and len(names) == len(mask) + 1:
        places = sorted({int(mask[: number % len(names)].sum()) for number in config.out_indices})
        config.stage_names = names[: int(mask.sum()) + 1]
        config.set_output_features_output_indices(None, places)


def _inherit(first: nn.Module, heir: nn.Module, path: str) -> set[int]:
    """Give a module of the first block to another, with the attribute that says who has it."""
    parent, _, name = path.rpartition(".")
    old, new = first.get_submodule(parent), heir.get_submodule(parent)
    if not hasattr(old, name):
        return set()
    moved = getattr(old, name)
    setattr(new, name, moved)
    setattr(new, f"has_{name}", True)
    delattr(old, name)
    return {id(p) for p in moved.parameters()}


def _counter(model: PreTrainedModel, site: StackSite) -> tuple[Any, str]:
    """Return the config, and its entry, that counts the blocks of a stack."""
    counts, own = architecture_of(model).counts, type(model).__name__.lower()
    # a stack alone, such as a BartDecoder, is named without its first word
    alone = {path.partition(".")[2]: e for path, e in counts.items() if path.partition(".")[0] in own}
    text = counts.get(site.path) or alone.get(site.path, "num_hidden_layers")
    path, _, entry = text.rpartition(".")
    return (getattr(model.config, path, model.config) if path else model.config), entry


def is_gone(name: str, plan: Plan) -> bool:
    """Return whether a site is in a block that the plan removes."""
    stack, _, number = name.partition("/")[0].rpartition(".")
    left = plan.keep.get(f"{stack}/layers")
    return left is not None and number.isdecimal() and int(number) not in left


def without_gone(plan: Plan) -> Plan:
    """Return the plan without the units of blocks that it removes."""
    left = [name for name in plan.keep if not is_gone(name, plan)]
    return Plan({n: plan.keep[n] for n in left}, {n: plan.units[n] for n in left}, plan.origin)


def skeleton_of_stacks(model: PreTrainedModel) -> dict[str, Any]:
    """Return what a skeleton says of norms whose sublayer is gone, and of a new first block."""
    tables: dict[str, Any] = {"shapes": {}, "grafts": {}, "copies": {}}
    for path, module in model.base_model.named_modules():
        if getattr(module, "grafted", {}).get("as") == ["Absent"]:
            tables["grafts"][path] = module.grafted
            tables["shapes"] |= {f"{path}.{name}": [] for name, p in module._parameters.items() if p is None}
    for site in sites(model, "layers"):
        if site.parts and site.parts[0].number:
            for path, like in architecture_of(model).lacking.items():
                tables["copies"][f"{site.path}.0.{path}"] = like
    return tables
