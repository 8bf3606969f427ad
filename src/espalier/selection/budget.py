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


class _Bundle(NamedTuple):
    """Units that are kept or removed together: one head, or `multiple` neurons."""

    score: float
    cost: float
    site: str
    units: tuple[int, ...]


def total_cost(mask: Mask, costs: Mapping[str, float]) -> float:
    """Return the cost of the units that a mask keeps; `costs` is that of one unit of each site."""
    return sum(int(m.sum()) * costs[name] for name, m in mask.items())


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
        raise InvalidValueError(f"some scores of {name} are nan, so there is no order among them", "scores")
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


def rearrange(mask: Mask, products: Mapping[str, Tensor], rounds: int = 1000) -> Mask:
    """Swap kept and removed units within each site while that lowers the loss to second order.

    `products` holds, for each site, the mean products of the gate gradients of two units, [units, units]: of
    two units that do the same, one is kept, where their own scores would keep both or neither.
    """
    out = Mask({name: m.clone() for name, m in mask.items()})
    for name, kept in out.items():
        if name not in products or kept.all() or not kept.any():
            continue
        both = products[name].double()
        own = both.diagonal()
        for _ in range(rounds):
            gone = (~kept).double()
            pull = both @ gone
            inside, outside = kept.nonzero().flatten(), (~kept).nonzero().flatten()
            # the change of Σ of `both` over removed pairs if `out` comes back and `in` is removed
            change = (own[outside] - 2 * pull[outside])[:, None] + (own[inside] + 2 * pull[inside])[None]
            change = change - 2 * both[outside][:, inside]
            best = int(change.argmin())
            back, away = divmod(best, len(inside))
            if change[back, away] >= -1e-12 * float(gone @ pull):
                break
            kept[outside[back]], kept[inside[away]] = True, False
    return out
