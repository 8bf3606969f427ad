"""Pruning that repairs as it goes: SparseGPT (https://arxiv.org/abs/2301.00774).

A weight that is closed leaves an error in what its matrix writes; the weights to the right of it in the same
row are moved so that they make up for it, as far as the calibration tokens tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from ..core.batches import Batches
from ..core.errors import EspalierError
from ..core.mask import Mask
from ..engine.activations import check_readable
from ..engine.gates import quiet
from ..engine.hessians import DAMPING, factor, hessians
from ..selection.exact_k import keep_highest
from ..selection.scopes import kept_in_last_group
from .cut import rewrite

METHOD = "sparsegpt"
BLOCK = 128  # columns whose weights are chosen together


def repairs(criterion: str, scope: str) -> bool:
    """Whether a criterion of this name is a method that repairs, and repairs within this scope."""
    return criterion == METHOD and (scope == "layer" or ":" in scope)


def compensate(
    model: Any,
    sites: Sequence[Any],
    batches: Batches,
    keep: float = 0.5,
    *,
    n: int | None = None,
    m: int | None = None,
    block: int = BLOCK,
    damping: float = DAMPING,
    mask: Mask | None = None,
) -> Mask:
    """Prune the matrices to `keep`, or to n of every m, and adjust what stays, in place. Returns the mask.

    Layer after layer: each sees the inputs that the pruned layers before it give it, at one pass over the
    batches for each. `round(keep * weights)` of every matrix live, evenly from block to block of columns.
    What is closed in `mask` stays closed; a block in which fewer live keeps those.
    """
    found = list(sites)
    data = batches if isinstance(batches, Batches) else Batches(batches)
    _check(found, keep, n, m, block)
    check_readable(found, data, "compensate")  # all, before the first is changed
    out = Mask()
    with quiet(model), torch.no_grad():
        for _, layer in groupby(found, key=lambda site: site.name.partition("/")[0]):
            members = list(layer)
            measured = hessians(model, members, data, "compensate")
            for site in members:
                turned = site.input_axis == 0
                weight = site.fold(lambda w, _: w)
                alive = None if mask is None else mask[site.name].bool().to(weight.device)
                weight, kept = repaired(
                    weight.T if turned else weight,
                    measured.pop(site.name),
                    keep,
                    groups=None if n is None or m is None else (n, m),
                    block=block,
                    damping=damping,
                    alive=alive.T if turned and alive is not None else alive,
                )
                rewrite(site, weight.T if turned else weight)
                out[site.name] = (kept.T if turned else kept).contiguous().cpu()
    return out


def repaired(
    weight: Tensor,
    hessian: Tensor,
    keep: float,
    *,
    groups: tuple[int, int] | None = None,
    block: int = BLOCK,
    damping: float = DAMPING,
    alive: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A matrix [outputs, inputs] after pruning and repair, and which of its weights live, of those `alive`.

    Column by column: a closed weight's error, in units of the factor's diagonal, is taken from the columns
    to its right. Within a block at once, beyond it in one product.
    """
    rest = weight.clone()
    upper, unread = factor(hessian, damping), hessian.diagonal() == 0
    rows, width = rest.shape
    kept = torch.ones_like(rest, dtype=torch.bool)
    if groups:
        block = max(1, block // groups[1]) * groups[1]  # no group lies in two blocks
    for start in range(0, width, block):
        stop = min(start + block, width)
        within = upper[start:stop, start:stop]
        part, errors = rest[:, start:stop], torch.zeros_like(rest[:, start:stop])

        def saliency(here: slice, part: Tensor = part, within: Tensor = within, start: int = start) -> Tensor:
            value = (part[:, here] / within.diagonal()[here]).square()
            # What no token ever fed can go for nothing.
            return value.masked_fill(unread[start:][: part.shape[1]][here], 0)

        if not groups:
            # Counted from the left edge, so that rounding does not add up.
            count = round(keep * rows * stop) - round(keep * rows * start)
            living = None if alive is None else alive[:, start:stop].flatten()
            chosen = keep_highest(saliency(slice(None)).flatten(), count, living)
            kept[:, start:stop] = chosen.view(rows, -1)
        for column in range(stop - start):
            if groups and not column % groups[1]:
                here = slice(column, min(column + groups[1], stop - start))
                size = here.stop - here.start
                count = groups[0] if size == groups[1] else kept_in_last_group(*groups, width)
                there = slice(start + here.start, start + here.stop)
                living = None if alive is None else alive[:, there]
                kept[:, there] = keep_highest(saliency(here), count, living)
            value = part[:, column]
            error = (value / within[column, column]).masked_fill(kept[:, start + column], 0)
            errors[:, column] = error
            part[:, column:] -= torch.outer(error, within[column, column:])
            part[:, column].masked_fill_(~kept[:, start + column], 0)  # not almost zero
        rest[:, stop:] -= errors @ upper[start:stop, stop:]
    return rest, kept


def _check(sites: Sequence[Any], keep: float, n: int | None, m: int | None, block: int) -> None:
    if any(getattr(site, "kind", "") != "weights" for site in sites):
        raise EspalierError("compensate prunes single weights: give it sites(model, 'weights')")
    if (n is None) != (m is None) or (n is not None and m is not None and not 0 < n <= m):
        raise EspalierError(f"n of every m weights are kept, as in n=2, m=4; got n={n}, m={m}")
    if not 0 <= keep <= 1 or block < 1:
        raise EspalierError(
            f"keep is a fraction from 0 to 1 and block a number of columns; got {keep!r} and {block!r}"
        )
