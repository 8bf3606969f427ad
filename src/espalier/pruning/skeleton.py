"""The shape of a cut model without its weights, given to a model before the weights are loaded.

This file needs only torch and transformers: `espalier.save` writes a copy of it, with grafts.py and
storage/hook.py, into every folder of a cut model, so that the folder also loads without espalier.

A skeleton is plain JSON with tables, all paths relative to the base model as its config builds it:
    shapes      parameter -> its size after the cut; an empty one is a parameter that is gone
    attributes  sizes that modules hold as attributes (`...attention.num_heads`)
    grafts      modules that behave differently after the cut, see grafts.py
    copies      modules that the config does not build -> one that is made the same way; often absent
"""

import copy
from math import prod
from typing import Any, TypeGuard

from torch import nn

from .grafts import GRAFTS, graft

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
    copies = skeleton.get("copies", {})
    if not isinstance(copies, dict) or not all(isinstance(text, str) for text in copies.values()):
        raise ValueError("the skeleton in the config is damaged: see its copies")
    return skeleton


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) < 3 and all(map(_is_count, value))


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
    for path, like in skeleton.get("copies", {}).items():
        if {path, like} <= modules and type(base.get_submodule(path)) is not type(base.get_submodule(like)):
            base.set_submodule(path, copy.deepcopy(base.get_submodule(like)))
    for path, shape in skeleton["shapes"].items():
        owner, _, name = path.rpartition(".")
        if owner not in modules:
            continue
        module = base.get_submodule(owner)
        old = module._parameters.get(name)
        if not shape and name in module._parameters:
            setattr(module, name, None)
            continue
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
