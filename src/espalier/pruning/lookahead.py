"""Compare masks by what they do: the divergence of the predictions, and no longer than it takes to be sure.

Scores are guesses to second order. A race runs the model with each of a few masks, batch by batch, and drops
a mask as soon as its divergence lies clearly above that of the best on the same examples. Blocks below the
first one in which a mask differs from the one before are not run again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..architectures.site import Site
from ..architectures.stack import StackSite
from ..core.batches import Batch, Batches, model_inputs
from ..core.mask import Mask
from ..engine.cache import ActivationCache
from ..engine.gates import masked
from ..engine.passes import frozen_eval

CLEARLY = 3.0  # standard errors of the mean difference to the best
FEWEST = 32  # examples before any mask is dropped

Logits = Callable[[int], Tensor]  # of the unpruned model on a batch


def race(
    model: Any,
    sites: Sequence[Site | StackSite],
    masks: Sequence[Mapping[str, Tensor]],
    batches: Batches,
    dense: Logits,
) -> tuple[int, int]:
    """Return which mask changes the predictions least, and how many passes over a batch it took.

    `masks` are of the units that the model has. Ties go to the first.
    """
    blocks = list(dict.fromkeys(part for site in sites for part in _blocks(site)))
    cache = ActivationCache()
    cache.usable = all(site.uses == 1 for site in sites)
    # what changes lowest runs last: it finds most of the others' blocks kept
    order = sorted(range(len(masks)), key=lambda n: _first_change(sites, blocks, masks[n]), reverse=True)
    found: dict[int, list[Tensor]] = {number: [] for number in order}
    numbers, passes = list(range(len(batches))), 0
    random.Random(0).shuffle(numbers)  # they are sorted by length
    with torch.no_grad(), frozen_eval(model):
        for number in numbers:
            if len(found) == 1:
                break
            wanted = dense(number)
            for candidate in [one for one in order if one in found]:
                with (
                    masked(sites, Mask(masks[candidate])),
                    cache.over(blocks, _states(sites, blocks, masks[candidate])) as now,
                ):
                    now.begin(number)
                    out = model(**model_inputs(batches[number])).logits
                found[candidate].append(divergence(out, wanted, batches[number]))
                passes += 1
            found = _survivors(found)
            cache.clear()
    means = {candidate: float(torch.cat(each).mean()) for candidate, each in found.items() if each}
    return min(sorted(found), key=lambda one: means.get(one, 0.0)), passes


def divergence(out: Tensor, wanted: Tensor, batch: Batch) -> Tensor:
    """Return the divergence of each example's predictions; of a single number the squared difference."""
    if out.shape[-1] == 1:
        each = (out.double() - wanted.double()).square().squeeze(-1)
    else:
        new, old = out.double().log_softmax(-1), wanted.double().log_softmax(-1)
        each = torch.where(old.isneginf(), 0.0, old.exp() * (old - new)).sum(-1)  # what neither predicts
    mask = batch.get("attention_mask")
    if each.dim() == 2 and mask is not None and mask.shape == each.shape:
        return (each * mask).sum(1) / mask.sum(1).clamp(min=1)
    return each.flatten(1).mean(1) if each.dim() > 1 else each


def _survivors(found: Mapping[int, list[Tensor]]) -> dict[int, list[Tensor]]:
    """Drop the masks that are clearly worse than the best on the same examples."""
    every = {candidate: torch.cat(each) for candidate, each in found.items()}
    first = min(sorted(every), key=lambda one: float(every[one].mean().nan_to_num(torch.inf)))
    best = every[first]
    if len(best) < FEWEST:
        return dict(found)

    def stays(own: Tensor) -> bool:
        gap = own - best
        return float(gap.mean()) <= CLEARLY * float(gap.std()) / len(gap) ** 0.5

    return {one: each for one, each in found.items() if one == first or stays(every[one])}


def _blocks(site: Site | StackSite) -> list[Any]:
    return [site.block] if isinstance(site, Site) else [part.block for part in site.parts]


def _states(
    sites: Sequence[Site | StackSite], blocks: Sequence[Any], mask: Mapping[str, Tensor]
) -> list[tuple[Any, ...]]:
    """Return for each block what the mask removes in it."""
    states: dict[Any, list[Any]] = {block: [] for block in blocks}
    for site in sites:
        kept = mask[site.name].tolist()
        for block, own in zip(_blocks(site), [kept] if isinstance(site, Site) else kept):
            states[block].append(own)
    return [tuple(map(str, states[block])) for block in blocks]


def _first_change(
    sites: Sequence[Site | StackSite], blocks: Sequence[Any], mask: Mapping[str, Tensor]
) -> int:
    whole = {site.name: torch.ones_like(mask[site.name]) for site in sites}
    pairs = zip(_states(sites, blocks, mask), _states(sites, blocks, whole))
    return next((number for number, (one, other) in enumerate(pairs) if one != other), len(blocks))
