"""Which sublayer of a cut model is fitted to which of the unpruned one.

A sublayer that lost units is fitted to the stream after its own. One below a removed block is fitted to the
stream after that block; the next one above is fitted too, as it now reads something else. Where tokens are
dropped, so are all sublayers above.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any

from ..architectures.site import Site
from ..architectures.sites import sites as find_sites
from ..core.errors import InvalidValueError
from ..core.types import PreTrainedModel

Pair = tuple[Site, Site]


def pair_sites(
    model: PreTrainedModel, dense: PreTrainedModel, *, every: bool = False, narrow: Collection[Any] = ()
) -> list[Pair]:
    """Return (sublayer to fit, sublayer whose stream it is fitted to), from the bottom up.

    With `every`, all sublayers from the first change on; `narrow` are blocks that read fewer tokens.
    """
    whole = find_sites(dense)
    left = _check(find_sites(model), {site.name: site for site in whole})
    found: list[Pair] = []
    for _, stack in groupby(whole, key=lambda site: site.path.rpartition(".")[0]):
        found += _pairs_of(left, list(stack), every, narrow)
    return found


def ends_differ(model: PreTrainedModel, dense: PreTrainedModel) -> bool:
    """Return whether the last blocks are not the same one."""
    last = [[site.name for site in find_sites(one)][-1:] for one in (model, dense)]
    return last[0] != last[1]


def _check(found: Sequence[Site], whole: Mapping[str, Site]) -> dict[str, Site]:
    for site in found:
        other = whole.get(site.name)
        if other is None or other.units < site.units:
            seen = "has no such units" if other is None else f"has {other.units} units"
            raise InvalidValueError(
                f"`dense` must be the model that was cut: {site.name} has {site.units} units, and `dense` "
                f"{seen}",
                "dense",
            )
    return {site.name: site for site in found}


def _pairs_of(
    left: Mapping[str, Site], stack: Sequence[Site], every: bool, narrow: Collection[Any]
) -> list[Pair]:
    """Return the pairs of one stack of the unpruned model."""
    found: list[Pair] = []
    changed = moved = False  # anything below, and the input of the sublayer at hand by a removal
    for number, other in enumerate(stack):
        site = left.get(other.name)
        if site is None or is_silent(site):
            changed = moved = True
            continue
        target = _after_gap(left, stack, number)
        fewer = site.units < other.units or target is not other or site.block in narrow
        changed = changed or fewer
        if fewer or moved or (every and changed):
            found.append((site, target))
        moved = False
    return found


def _after_gap(left: Mapping[str, Site], stack: Sequence[Site], number: int) -> Site:
    """Return the last removed sublayer above one, up to a whole block; itself if there is none.

    Where attention and network are added at once, only the end of a block is a place between two blocks.
    """
    target, own = stack[number], stack[number]
    for above, following in zip(stack[number + 1 :], [*stack[number + 2 :], None]):
        site = left.get(above.name)
        if site is not None and not is_silent(site):
            break
        if above.path == own.path or following is None or following.path != above.path:
            target = above
    return target


def is_silent(site: Site) -> bool:
    """Return whether a sublayer is gone: it has no units and its matrix writes nothing, not even a bias."""
    return site.units == 0 and getattr(site.module("write"), "bias", None) is None
