"""Choose heads and neurons together: the highest sum of scores that a budget of costs allows.

To second order and without interactions, removing units raises the loss by the sum of their scores, so that
the choice is a knapsack. Units of one cost are taken from the best down; with two costs, one for heads and
one for neurons, trying every number of the dearer kind and filling up with the cheaper is exact
(Kwon et al. 2022, https://arxiv.org/abs/2204.09656).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, product
from math import ceil, prod
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.errors import InvalidValueError
from ..core.mask import Mask, Scores
from .scopes import target_of

MOST_TRIALS = 100_000  # numbers of units that are tried; above, the best by score per cost are taken
SLIGHT, TINY = 1e-9, 1e-300  # what a unit of cost is worth by itself, relative to the best score
LEAST_HEADS = 0.25  # of a cut in proportion: a guess of the scores must not empty all attention


NAN = "some scores of {} are nan, so there is no order among them"
Cost = float | Tensor  # of any unit of a site, or of each one


class _Bundle(NamedTuple):
    """Units that are kept or removed together: one head, or `multiple` neurons."""

    score: float
    cost: float
    site: str
    units: tuple[int, ...]


def total_cost(mask: Mask, costs: Mapping[str, Cost]) -> float:
    """Return the cost of the units that a mask keeps; `costs` is that of one unit of each site."""
    return sum(_cost_of(m, costs[name]) for name, m in mask.items())


def _cost_of(kept: Tensor, cost: Cost) -> float:
    return float(cost[kept].sum()) if isinstance(cost, Tensor) else int(kept.sum()) * cost


def keep_within(
    scores: Scores,
    costs: Mapping[str, float],
    budget: float,
    *,
    mask: Mask | None = None,
    multiple: int = 1,
    least_heads: float = LEAST_HEADS,
) -> Mask:
    """Return the mask of the highest scores whose costs are at most `budget`.

    >>> keep_within(Scores({"0/heads": tensor([3.0, 1.0]), "0/neurons": tensor([2.0, 2.0, 0.5])}),
    ...             {"0/heads": 2.0, "0/neurons": 1.0}, budget=4.0)
    {'0/heads': tensor([True, False]), '0/neurons': tensor([True, True, False])}

    Units that `mask` removes stay removed. Neurons are kept in multiples of `multiple` in each layer. Of the
    heads that a cut in proportion would keep, at least the fraction `least_heads` is kept, best first.
    """
    if multiple < 1:
        raise InvalidValueError(f"`multiple` is at least 1; got {multiple!r}", "multiple")
    kept = Mask({name: torch.ones(s.shape, dtype=torch.bool) for name, s in scores.items()})
    whole = total_cost(kept, costs)
    kept = kept if mask is None else Mask(mask)
    if total_cost(kept, costs) <= budget:
        return kept
    classes: dict[float, list[_Bundle]] = {}
    every = [b for name in scores for b in _bundles(name, scores[name], kept[name], costs[name], multiple)]
    for bundle in _lifted(every):
        classes.setdefault(bundle.cost, []).append(bundle)
    by_cost = [sorted(classes[c], key=lambda one: -one.score) for c in sorted(classes, reverse=True)]
    heads = [one for group in by_cost for one in group if target_of(one.site) == "heads"]
    every_head = sum(scores[name].numel() for name in scores if target_of(name) == "heads")
    least = min(len(heads), ceil(least_heads * every_head * budget / whole)) if whole else 0
    sizes = [len(group) + 1 for group in by_cost[:-1]]
    chosen = _search(by_cost, budget, least) if prod(sizes) <= MOST_TRIALS else None
    if chosen is None:
        chosen = _fill(heads, by_cost, budget, least)
    out = Mask({name: torch.zeros_like(m) for name, m in kept.items()})
    for bundle in chosen:
        out[bundle.site][list(bundle.units)] = True
    return out


def _bundles(name: str, scores: Tensor, kept: Tensor, cost: float, multiple: int) -> list[_Bundle]:
    """Return the kept units, best first, in bundles; an incomplete last one costs as much as a whole one."""
    units = kept.nonzero().flatten()
    values = scores[units].double()
    if values.isnan().any():
        raise InvalidValueError(NAN.format(name), "scores")
    order = values.argsort(descending=True, stable=True)
    size = multiple if target_of(name) == "neurons" else 1
    return [
        _Bundle(float(values[part].sum()), cost * size, name, tuple(units[part].tolist()))
        for part in order.split(size)
    ]


def _lifted(bundles: Sequence[_Bundle]) -> list[_Bundle]:
    """Add the same to every score for each unit of cost, so that none is below zero.

    Of masks that cost the same the best stays the best. Otherwise units that score zero or less (a signed
    score, a reversed one, neurons that never fire) would be removed beyond what the budget asks for.
    """
    worth = [one.score / one.cost for one in bundles if one.cost and abs(one.score) < float("inf")]
    if not worth:
        return list(bundles)
    lift = max(0.0, -min(worth)) + SLIGHT * max(max(map(abs, worth)), TINY)
    return [one._replace(score=one.score + lift * one.cost) for one in bundles]


def _search(by_cost: Sequence[Sequence[_Bundle]], budget: float, least: int) -> list[_Bundle] | None:
    """Try every number of units of each cost but the lowest, and fill up with those."""
    *dear, cheap = by_cost
    sums = [list(accumulate((one.score for one in group), initial=0.0)) for group in by_cost]
    heads = [list(accumulate((target_of(b.site) == "heads" for b in group), initial=0)) for group in by_cost]
    best, chosen = -float("inf"), None
    for counts in product(*(range(len(group) + 1) for group in dear)):
        left = budget - sum(n * group[0].cost for n, group in zip(counts, dear) if group)
        if left < 0:
            continue
        filled = min(len(cheap), int(left / cheap[0].cost + 1e-9))
        numbers = (*counts, filled)
        score = sum(each[n] for each, n in zip(sums, numbers))
        if score > best and sum(each[n] for each, n in zip(heads, numbers)) >= least:
            best, chosen = score, numbers
    if chosen is None:
        return None
    return [one for group, n in zip(by_cost, chosen) for one in group[:n]]


def _fill(
    heads: Sequence[_Bundle], by_cost: Sequence[Sequence[_Bundle]], budget: float, least: int
) -> list[_Bundle]:
    """Take the best by score per cost while they fit, after the heads that must stay."""
    first = sorted(heads, key=lambda one: -one.score / one.cost)[:least]
    rest = [one for group in by_cost for one in group if one not in first]
    chosen, left = [], budget
    for one in (*first, *sorted(rest, key=lambda one: -one.score / one.cost)):
        if one.cost <= left:
            chosen.append(one)
            left -= one.cost
    return chosen


def drop_within(
    scores: Scores, costs: Mapping[str, Cost], budget: float, *, mask: Mask | None = None, first: int = 0
) -> Mask:
    """Return what is left within `budget` when units go one by one, the lowest score for its cost first.

    It is for few large units, such as blocks. Of the blocks of a stack one stays; ties go by their order.
    With `first` another than the lowest begins: the next above it, and so on.
    """
    out = Mask({name: torch.ones(s.shape, dtype=torch.bool) for name, s in scores.items()})
    out = Mask({name: m.clone() for name, m in (out if mask is None else mask).items()})
    worth: list[tuple[float, str, int]] = []
    for name, kept in out.items():
        values = scores[name].double() / torch.as_tensor(costs[name], dtype=torch.float64)
        if values[kept].isnan().any():
            raise InvalidValueError(NAN.format(name), "scores")
        worth += [(float(values[unit]), name, int(unit)) for unit in kept.nonzero().flatten()]
    worth.sort(key=lambda one: one[0])
    for _, name, unit in (*worth[first : first + 1], *worth[:first], *worth[first + 1 :]):
        if total_cost(out, costs) <= budget:
            break
        if target_of(name) != "layers" or int(out[name].sum()) > 1:
            out[name][unit] = False
    return out


def rearrange(mask: Mask, gradients: Mapping[str, Tensor]) -> Mask:
    """Exchange removed units for kept ones of the same site, so that the removed ones' gradients cancel.

    `gradients` holds those of the gates for each site, [batches, units]: of two units that do the same, one
    is kept, where their own scores would keep both or neither. As the code of Kwon et al. does it: every kept
    unit, from the lowest squared gradient up, is removed too, and that one comes back without which the
    squared length of the summed gradients is the smallest.
    """
    out = Mask({name: m.clone() for name, m in mask.items()})
    for name, kept in out.items():
        if name not in gradients or kept.all() or not kept.any():
            continue
        grads = gradients[name].double().T.contiguous()  # [units, batches]
        own, total = grads.square().sum(1), grads[~kept].sum(0)
        for unit in own.argsort(stable=True).tolist():
            if not mask[name][unit]:
                continue
            kept[unit], total = False, total + grads[unit]
            back = int((own - 2 * grads @ total).masked_fill(kept, torch.inf).argmin())
            kept[back], total = True, total - grads[back]
    return out
