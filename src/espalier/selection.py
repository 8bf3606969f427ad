"""From scores to masks."""

from __future__ import annotations

import torch
from torch import Tensor

from .core import Mask, Scores
from .errors import EspalierError


def lowest(scores: Scores, keep: float, *, mask: Mask | None = None) -> Mask:
    """Close the lowest-scored living units of the whole model until `keep` of all units remain.

    Exactly `round(keep * units)` live afterwards, whatever the ties: among equal scores the earlier unit
    goes first. Units already closed in `mask` stay closed. Scores of heads and of neurons have no common
    scale, so each kind is chosen from by itself.
    """
    kinds: dict[str, list[str]] = {}
    for name in _names(scores, keep):
        kinds.setdefault(_kind(name), []).append(name)
    chosen: dict[str, Tensor] = {}
    for names in kinds.values():
        chosen |= _lowest(scores, names, keep, mask)
    return Mask({name: chosen[name] for name in scores})


def per_layer(scores: Scores, keep: float, *, mask: Mask | None = None) -> Mask:
    """Keep the same fraction of every site: an even cut, which a plain export can describe."""
    chosen: dict[str, Tensor] = {}
    for name in _names(scores, keep):
        chosen |= _lowest(scores, [name], keep, mask)
    return Mask(chosen)


def _names(scores: Scores, keep: float) -> list[str]:
    if not 0 <= keep <= 1:
        raise EspalierError(f"keep is a fraction of the units, from 0 to 1; got {keep!r}")
    if not scores:
        raise EspalierError("there are no scores to choose by")
    return list(scores)


def _kind(name: str) -> str:
    """`encoder.layer.0/cross_heads` -> heads; a path of a weight is of the kind weights."""
    part = name.rpartition("/")[2]
    return "heads" if part.endswith("heads") else part if part == "neurons" else "weights"


def _lowest(scores: Scores, names: list[str], keep: float, mask: Mask | None) -> dict[str, Tensor]:
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
    return {n: part.view_as(scores[n]) for n, part in zip(names, chosen.split(sizes))}
