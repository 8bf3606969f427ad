"""Removing named heads: the replacement of transformers 4's `model.prune_heads`."""

from collections.abc import Iterable, Mapping, Sequence
from operator import index

from ..architectures.site import Site
from ..architectures.sites import sites
from ..architectures.table import architecture_of
from ..core.errors import InvalidValueError, UnknownNameError
from ..core.mask import Plan
from ..core.types import PreTrainedModel
from .cut import cut, plan_of


def prune_heads(model: PreTrainedModel, heads: Mapping[int | str, Iterable[int]]) -> PreTrainedModel:
    """Remove `{layer: [heads]}`, numbered as in the unpruned model, in place, and return the model.

    Heads that are removed already may be named again. Where queries are grouped, the heads of a layer are its
    key-value groups. Layers are numbered along self-attention; for cross-attention, and for encoder-decoders,
    which have two stacks of layers, name the site. Create the optimiser afterwards.
    """
    if not isinstance(heads, Mapping):
        raise InvalidValueError(f"`heads` is {{layer: [heads]}}; got {type(heads).__name__}", "heads")
    found = {site.name: site for site in sites(model, "heads")}
    layers = [site.name for site in found.values() if site.spec.name == "heads"]
    if len(architecture_of(model).stacks) > 1 and len({name.rpartition(".")[0] for name in layers}) > 1:
        layers = []  # a number could mean a layer of either stack
    plan = plan_of(model)
    units = {name: plan.units.get(name, site.units) for name, site in found.items()}
    keep = {name: set(plan.keep.get(name, range(n))) for name, n in units.items()}
    for layer, removed in heads.items():
        name = _site_name(layer, layers, found)
        for head in _numbers(removed):
            if not 0 <= head < units[name]:
                group = found[name].group
                what = f"groups of {group} query heads" if group > 1 else "heads"
                raise InvalidValueError(
                    f"{name} has no head {head}: it has {units[name]} {what}, 0 to {units[name] - 1}", "heads"
                )
            keep[name].discard(head)
    return cut(model, Plan({n: sorted(k) for n, k in keep.items()}, units))


def _site_name(layer: int | str, layers: Sequence[str], found: Mapping[str, Site]) -> str:
    if isinstance(layer, str) and not layer.isdigit():  # JSON has numbers as text
        if layer not in found:
            raise UnknownNameError("site with heads", layer, found, "heads")
        return layer
    number = _numbers([int(layer) if isinstance(layer, str) else layer])[0]
    if not 0 <= number < len(layers):
        there = f"there are {len(layers)}" if layers else f"name the site, as in {list(found)[-1]!r}"
        raise InvalidValueError(f"no layer {number}: {there}", "heads")
    return layers[number]


def _numbers(values: Iterable[int]) -> list[int]:
    try:
        return [index(value) for value in values]
    except TypeError:
        raise InvalidValueError(
            f"`heads` has integers, as in {{0: [1, 3]}}; got {values!r}", "heads"
        ) from None
