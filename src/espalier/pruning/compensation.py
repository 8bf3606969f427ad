"""Pruning that updates the weights it keeps: SparseGPT (https://arxiv.org/abs/2301.00774).

A weight that is removed leaves an error in what its matrix writes; the weights to the right of it in the same
row are changed to compensate for it, as far as the calibration tokens show.
"""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from ..architectures.site import WeightSite
from ..core.batches import Batches
from ..core.errors import InvalidValueError
from ..core.mask import Mask
from ..core.types import PreTrainedModel
from ..engine.activations import check_readable
from ..engine.hessians import DAMPING, factor, hessians
from ..engine.passes import frozen_eval
from ..selection.scopes import LAYER, groups_of, keep_highest, kept_in_last_group, removed_by

BLOCK = 128  # columns whose weights are chosen together


def compensate(
    model: PreTrainedModel,
    sites: Sequence[WeightSite],
    batches: Batches,
    remove: float = 0.5,
    *,
    scope: str = LAYER,
    block: int = BLOCK,
    damping: float = DAMPING,
    mask: Mask | None = None,
) -> Mask:
    """Remove a fraction of each matrix and update the weights that are kept, in place; return the mask.

    `scope` is "layer", or N:M such as "2:4", from which `remove` follows. Layer after layer: each reads the
    inputs that the pruned layers before it produce, with one pass over the batches for each.
    `round((1 - remove) * weights)` of every matrix are kept, evenly from block to block of columns. Weights
    that `mask` removed stay removed; a block in which it keeps fewer keeps those.
    """
    groups = groups_of(scope)
    remove = removed_by(scope, remove)
    if scope != LAYER and not groups:
        raise InvalidValueError(f"`scope` of compensate is layer or N:M, as in 2:4; got {scope}", "scope")
    if block < 1:
        raise InvalidValueError(f"`block` is a number of columns; got {block!r}", "block")
    if any(site.target != "weights" for site in sites):
        raise InvalidValueError("compensate prunes single weights: pass sites(model, 'weights')", "sites")
    data = batches if isinstance(batches, Batches) else Batches(batches)
    check_readable(sites, data, "compensate")  # all, before the first is changed
    out = Mask()
    with frozen_eval(model), torch.no_grad():
        for _, layer in groupby(sites, key=lambda site: site.name.partition("/")[0]):
            members = list(layer)
            measured = hessians(model, members, data, "compensate")
            for site in members:
                axis = site.input_axis
                old = site.fold(lambda w, _: w).movedim(axis, -1)
                allowed = None if mask is None else mask[site.name].bool().to(old.device).movedim(axis, -1)
                new, kept = repair(
                    old,
                    measured.pop(site.name),
                    remove,
                    groups=groups,
                    block=block,
                    damping=damping,
                    allowed=allowed,
                )
                site.linear.weight.copy_(new.movedim(-1, axis))
                out[site.name] = kept.movedim(-1, axis).contiguous().cpu()
    return out


def repair(
    weight: Tensor,
    hessian: Tensor,
    remove: float,
    *,
    groups: tuple[int, int] | None = None,
    block: int = BLOCK,
    damping: float = DAMPING,
    allowed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return a matrix [outputs, inputs] after pruning and repair, and which of its weights are kept.

    Column by column: the error of a removed weight, in units of the factor's diagonal, is subtracted from the
    columns to its right; within a block immediately, beyond it in one product. Weights that are not `allowed`
    are removed in any case.
    """
    rest = weight.clone()
    upper, unread = factor(hessian, damping), hessian.diagonal() == 0
    rows, width = rest.shape
    kept = torch.ones_like(rest, dtype=torch.bool)

    def choose(columns: slice, count: int, *, by_row: bool) -> None:
        """Keep the `count` highest of these columns, of each row or of all rows together."""
        value = (rest[:, columns] / upper.diagonal()[columns]).square()
        value = value.masked_fill(unread[columns], 0)  # an input that is always zero has no effect
        inside = torch.ones_like(kept[:, columns]) if allowed is None else allowed[:, columns]
        if not by_row:
            value, inside = value.flatten(), inside.flatten()
        kept[:, columns] = keep_highest(value, count, inside).view(rows, -1)

    n, m = groups or (1, 1)
    block = max(1, block // m) * m  # no group lies in two blocks
    for start in range(0, width, block):
        stop = min(start + block, width)
        errors = torch.zeros_like(rest[:, start:stop])
        if not groups:
            # counted from the left edge, so that rounding does not add up
            count = round((1 - remove) * rows * stop) - round((1 - remove) * rows * start)
            choose(slice(start, stop), count, by_row=False)
        for column in range(start, stop):
            if groups and not column % m:
                last = min(column + m, stop)
                count = n if last - column == m else kept_in_last_group(n, m, width)
                choose(slice(column, last), count, by_row=True)
            error = (rest[:, column] / upper[column, column]).masked_fill(kept[:, column], 0)
            errors[:, column - start] = error
            rest[:, column:stop] -= torch.outer(error, upper[column, column:stop])
            rest[:, column].masked_fill_(~kept[:, column], 0)  # not almost zero
        rest[:, stop:] -= errors @ upper[start:stop, stop:]
    return rest, kept
