"""From scores to masks."""

from __future__ import annotations

import torch

from .core import Mask, Scores
from .errors import EspalierError


def lowest(scores: Scores, keep: float, *, mask: Mask | None = None) -> Mask:
    """Close the lowest-scored living units of the whole model until `keep` of all units remain.

    Exactly `round(keep * units)` live afterwards, whatever the ties: among equal scores the earlier unit
    goes first. Units already closed in `mask` stay closed.
    """
    if not 0 <= keep <= 1:
        raise EspalierError(f"keep is a fraction of the units, from 0 to 1; got {keep!r}")
    names = list(scores)
    if not names:
        raise EspalierError("there are no scores to choose by")
    sizes = [scores[n].numel() for n in names]
    value = torch.cat([scores[n].flatten().double().cpu() for n in names])
    if value.isnan().any():
        raise EspalierError("some scores are not numbers (nan), so there is no order among them")
    alive = torch.ones_like(value, dtype=torch.bool)
    if mask is not None:
        alive = torch.cat([mask[n].flatten().cpu() for n in names])
    wanted = round(keep * value.numel())
    if wanted > int(alive.sum()):
        raise EspalierError(
            f"only {int(alive.sum())} of {value.numel()} units live; {wanted} cannot be kept"
        )
    order = value.masked_fill(~alive, -torch.inf).argsort(stable=True)
    # A living unit may score -inf too; dead ones must come first all the same.
    order = torch.cat([order[~alive[order]], order[alive[order]]])
    chosen = torch.ones_like(alive)
    chosen[order[: value.numel() - wanted]] = False
    return Mask({n: part.view_as(scores[n]) for n, part in zip(names, chosen.split(sizes))})
