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


def prune_heads(
    model: PreTrainedModel, heads: Mapping[int | str, Iterable[int]], *, report: bool = True
) -> PreTrainedModel:
    """Remove `{layer: [heads]}`, numbered as in the unpruned model, in place, and return the model.

    Heads that are removed already may be named again. Where queries are grouped, the heads of a layer are its
    key-value groups. Layers are numbered along self-attention, from the end if negative; an encoder-decoder's
    are its encoder's, as in transformers 4. Where all layers share one block (ALBERT), each of them is that
    block. For a decoder, for cross-attention and for models with several towers, name the site.
    Create the optimiser afterwards. `report` logs the cost before and after.
    """
    if not isinstance(heads, Mapping):
        raise InvalidValueError(f"`heads` is {{layer: [heads]}}; got {type(heads).__name__}", "heads")
    found = {site.name: site for site in sites(model, "heads")}
    layers = _numbered(model, [site for site in found.values() if site.spec.name == "heads"])
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
    return cut(model, Plan({n: sorted(k) for n, k in keep.items()}, units), report=report)


def _numbered(model: PreTrainedModel, found: Sequence[Site]) -> list[str]:
    """Return the names of the sites that integers stand for; none where they could mean several."""
    stacks = architecture_of(model).stacks
    if getattr(model.config, "is_encoder_decoder", False):
        found = [site for site in found if site.path.startswith(f"{stacks[0]}.")] or found
    if len(stacks) > 1 and len({site.path.rpartition(".")[0] for site in found}) > 1:
        return []
    names = [site.name for site in found]
    return names * found[0].uses if len(names) == 1 else names


def _site_name(layer: int | str, layers: Sequence[str], found: Mapping[str, Site]) -> str:
    if isinstance(layer, str) and not layer.removeprefix("-").isdecimal():  # JSON has numbers as text
        if layer not in found:
            raise UnknownNameError("site with heads", layer, found, "heads")
        return layer
    number = _numbers([int(layer) if isinstance(layer, str) else layer])[0]
    if not -len(layers) <= number < len(layers):
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
