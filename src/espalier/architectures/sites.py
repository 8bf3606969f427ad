"""Finding the sites of a model: every place where units can be removed."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, overload

from torch import Tensor, nn

from ..core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from ..core.mask import Mask, from_runs
from ..core.types import PreTrainedModel
from .site import Reads, Site, WeightSite, has_module
from .stack import SUBLAYERS, StackSite, holds, stack_sites
from .table import Architecture, UnitSpec, UnitTarget, architecture_of, evaluate_formula

UNITS = ("heads", "neurons", "slots")
STACKED = ("layers", "attention", "ffn")
CUTTABLE = (*UNITS, *STACKED)
TARGETS = (*CUTTABLE, "weights")
ALSO = ("embeddings", "head", "norms")  # what can be pruned weight by weight outside the blocks
MERGE = "If it carries an adapter, merge it first: model = model.merge_and_unload()"
AnyUnits = Site | StackSite | WeightSite
StackTarget = Literal["layers", "attention", "ffn"]
CROSSING = ("k", "v", "kv")  # roles of cross-attention that read what the encoder wrote


@overload
def sites(model: PreTrainedModel, *targets: UnitTarget) -> list[Site]: ...
@overload
def sites(
    model: PreTrainedModel, target: Literal["weights"], /, *, also: Iterable[str] = ()
) -> list[WeightSite]: ...
@overload
def sites(model: PreTrainedModel, *targets: StackTarget) -> list[StackSite]: ...
@overload
def sites(model: PreTrainedModel, *targets: str, also: Iterable[str] = ()) -> list[Any]: ...
def sites(model: PreTrainedModel, *targets: str, also: Iterable[str] = ()) -> list[Any]:
    """Return every place in the model where units can be removed, in forward order.

    >>> sites(model, "heads")
    [Site('encoder.layer.0/heads', units=12), ...]

    Without targets: heads, neurons and slots. "layers" gives the blocks of each stack, unit = one block,
    "attention" and "ffn" their sublayers. Numbers are those of the unpruned model. "weights" gives the
    matrices, unit = one weight; `also` adds
    those of the "embeddings", of the "head" (every linear layer outside the blocks) and of the "norms".
    """
    for target in targets:
        check_target(target)
    for word in (also := list(also)):
        if word not in ALSO:
            raise UnknownNameError("group of matrices", word, ALSO, "also")
    if also and "weights" not in targets:
        raise InvalidValueError(
            f"`also` ({', '.join(also)}) is scored weight by weight: add the target 'weights'", "also"
        )
    table, found = architecture_of(model), list[Any]()
    uses, kept = evaluate_formula(table.uses, model.config), kept_blocks(model)
    stacks: dict[str, list[tuple[int, nn.Module]]] = {
        name.removesuffix("/layers"): [] for name in kept if name.endswith("/layers")
    }
    every = list[Site]()
    for path, block in blocks(model, table):
        stack, _, index = path.rpartition(".")
        numbers = kept.get(f"{stack}/layers", ())
        number = numbers[int(index)] if int(index) < len(numbers) else int(index)
        stacks.setdefault(stack, []).append((number, block))
        for spec in _specs(model, table, path, block):
            site = Site(path, spec, block, uses=uses, numbered=f"{stack}.{number}")
            every.append(site)
            if spec.target in (targets or UNITS):
                found.append(site)
            if "weights" in targets:
                found += _matrices(site, table)
    for stack, members in stacks.items() if set(targets) & set(STACKED) else ():
        fixed = next((why for name, why in table.fixed.items() if holds(name, model.config)), "")
        made = stack_sites(stack, members, every, kept, model.config, fixed=fixed)
        found += [site for site in made if site.target in targets]
    listed: set[str] = {spec.target for spec in table.specs}
    listed |= {
        "layers",
        *(SUBLAYERS[spec.name].removeprefix("cross_") for spec in table.specs if spec.name in SUBLAYERS),
    }
    if not found and targets and not listed & set(targets):
        raise UnsupportedError(
            f"{model.config.model_type} has no {' and no '.join(targets)}; its units are {', '.join(listed)}"
        )
    if not found and not stacks:
        raise UnsupportedError(
            f"{type(model).__name__} ({model.config.model_type}): no block at {' or '.join(table.stacks)}"
        )
    outside = _outside(model, table) if also else {}
    embeddings, norms, head = (outside[k] if k in also else [] for k in ("embeddings", "norms", "head"))
    return [*embeddings, *found, *norms, *head]


def kept_blocks(model: PreTrainedModel) -> dict[str, list[int]]:
    """Return the blocks and sublayers that earlier cuts left, in the numbering of the unpruned model."""
    record = getattr(getattr(unwrapped(model), "config", None), "quantization_config", None)
    plan = record.get("plan") if isinstance(record, dict) else None
    if not isinstance(plan, dict) or not isinstance(plan.get("keep"), dict):
        return {}
    return {
        name: from_runs(kept, plan["units"][name]) for name, kept in plan["keep"].items() if is_stacked(name)
    }


def is_stacked(name: str) -> bool:
    """Return whether a site's name is that of blocks or sublayers, and not of units inside them."""
    return name.rpartition("/")[2] in ("layers", *SUBLAYERS.values())


def check_target(target: str) -> None:
    """Raise an error unless there is such a target."""
    if target not in TARGETS:
        raise UnknownNameError("target", target, TARGETS, "target")


def also_in_order(named: Iterable[str]) -> tuple[str, ...]:
    """Return those of `ALSO` that are named, each once and in their order."""
    return tuple(sorted(set(named) & set(ALSO), key=ALSO.index))


def check_also(model: PreTrainedModel, named: Iterable[str]) -> None:
    """Raise if the model has no such matrices of its own outside its blocks."""
    for word in named:
        if len(sites(model, "weights", also=(word,))) == len(sites(model, "weights")):
            often = "the head of a language model is often tied to its embeddings"
            raise InvalidValueError(f"{type(model).__name__} has no {word} of its own; {often}", "also")


def blocks(model: PreTrainedModel, table: Architecture) -> Iterator[tuple[str, nn.Module]]:
    """Yield (path from the base model, block), in forward order."""
    inner = [stack.partition(".")[2] for stack in table.stacks if "." in stack]
    yield from list(_blocks_at(table.stacks, model)) or _blocks_at(inner, model)


def is_stack(model: PreTrainedModel) -> bool:
    """Return whether this is one stack of blocks out of a model, such as `t5.encoder`."""
    return not any(_blocks_at(architecture_of(model).stacks, model))


def unwrapped(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model of transformers inside a `PeftModel`; any other model as it is."""
    inner = getattr(model, "get_base_model", None)
    return inner() if callable(inner) else model


def _blocks_at(stacks: Iterable[str], model: PreTrainedModel) -> Iterator[tuple[str, nn.Module]]:
    """Yield the blocks of these lists; paths in a part of a model lack their first word."""
    pattern = "|".join(re.escape(stack) + r"\.\d+" for stack in stacks).replace(r"\*", r"\d+")
    for path, block in unwrapped(model).base_model.named_modules():
        if pattern and re.fullmatch(pattern, path):
            yield path, block


def _matrices(site: Site, table: Architecture) -> Iterator[WeightSite]:
    crossing = CROSSING if site.spec.name == "cross_heads" else ()
    for role, place in site.places.items():
        if role in site.spec.vectors:
            continue
        reads: Reads = "encoder" if role in crossing else "hidden"
        name = f"{site.path}/{place.module}"
        if hasattr(site.module(role), "base_layer"):
            raise UnsupportedError(f"{name} is the sum of two matrices. {MERGE}")
        yield WeightSite(name, site.module(role), reads, _mask_of(name, table))


def _mask_of(name: str, table: Architecture) -> str:
    return next((m for start, m in table.masks.items() if name.startswith(start)), "attention_mask")


def _outside(model: PreTrainedModel, table: Architecture) -> dict[str, list[WeightSite]]:
    """Return the matrices that belong to no unit. One that is shared, as a tied output layer, comes once."""
    base = {id(module): path for path, module in unwrapped(model).base_model.named_modules()}
    inside = {id(m) for _, block in blocks(model, table) for m in block.modules()}
    out: dict[str, list[WeightSite]] = {kind: [] for kind in ALSO}
    seen: set[int] = set()
    modules = [(path, m) for path, m in model.named_modules() if "weight" in m._parameters]
    # Embeddings first: a matrix that is both looked up and multiplied belongs to them.
    for path, module in sorted(modules, key=lambda item: not isinstance(item[1], nn.Embedding)):
        weight = module._parameters["weight"]
        if weight is None or id(weight) in seen:
            continue
        seen.add(id(weight))
        parent, _, last = base.get(id(module), path).rpartition(".")
        name = f"{parent}/{last}" if parent else last
        if "norm" in type(module).__name__.lower() and weight.dim() == 1:
            out["norms"].append(WeightSite(name, module, "channels"))
        elif id(module) in inside:
            continue
        elif isinstance(module, nn.Embedding):
            out["embeddings"].append(WeightSite(name, module, "ids"))
        elif isinstance(module, nn.Linear) or hasattr(module, "nf"):
            out["head"].append(WeightSite(name, module, mask=_mask_of(name, table)))
    return out


def _specs(model: PreTrainedModel, table: Architecture, path: str, block: nn.Module) -> list[UnitSpec]:
    """Return the specs whose modules this block has; an error if one that must be there is not."""
    missing, found = [], []
    for spec in table.specs:
        write = spec.places["write"]
        required = [place for place in spec.places.values() if not place.path.endswith("?")]
        absent = [place.path for place in required if not has_module(block, place)]
        if not absent:
            found.append(spec)
        elif has_module(block, write):
            missing.append(absent[0])
        elif not spec.optional:
            missing.append(write.path)
    if missing or {spec.target for spec in found} != {spec.target for spec in table.specs}:
        raise UnsupportedError(
            f"{model.config.model_type}: {path} has no {', '.join(missing) or 'known unit'} "
            f"(it has: {', '.join(n for n, _ in block.named_modules() if n)}). Did transformers rename it?"
        )
    return found


def check_mask(mask: Mapping[str, Tensor], found: Mapping[str, AnyUnits]) -> Mask:
    """Return the mask if it fits the sites, else raise."""
    if not isinstance(mask, Mapping) or not mask:
        raise InvalidValueError(
            f"`mask` is a Mask or a Plan that names at least one site; got {type(mask).__name__}", "mask"
        )
    for name, m in mask.items():
        if name not in found:
            more = "cut() takes masks of heads, neurons and layers, zero() those of single weights."
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
