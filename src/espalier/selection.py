"""From scores to masks: of the whole model, of each site, of each row, or N of every M."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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


def per_row(scores: Scores, keep: float, *, mask: Mask | None = None) -> Mask:
    """Keep the same number of weights of every output row, `round(keep * inputs)`: what Wanda compares."""
    out = Mask()
    _names(scores, keep)
    for name, rows, alive in _rows(scores, mask):
        wanted = round(keep * rows.shape[-1])
        if alive is not None and rows.numel() and int(alive.sum(-1).min()) < wanted:
            raise EspalierError(
                f"only {int(alive.sum(-1).min())} of {rows.shape[-1]} weights live in some row of {name}; "
                f"{wanted} cannot be kept"
            )
        out[name] = _turned(highest(rows, wanted, alive), scores, name)
    return out


def n_m(scores: Scores, n: int, m: int, *, mask: Mask | None = None) -> Mask:
    """Keep n of every m neighbours along the inputs, as 2:4 hardware wants it.

    Where m does not divide the width, the last, shorter group keeps its share of it, rounded up. A group in
    which fewer than n live in `mask` keeps those.
    """
    if not 0 < n <= m:
        raise EspalierError(f"n of m weights are kept, from 1 to m of them; got {n} of {m}")
    out = Mask()
    _names(scores, 1)
    for name, rows, alive in _rows(scores, mask):
        whole = rows.shape[-1] // m * m
        chosen = torch.ones(rows.shape, dtype=torch.bool)
        for part, size, count in (
            (slice(0, whole), m, n),
            (slice(whole, None), max(1, rows.shape[-1] - whole), share(n, m, rows.shape[-1])),
        ):
            groups = rows[..., part].unflatten(-1, (-1, size))
            living = None if alive is None else alive[..., part].unflatten(-1, (-1, size))
            chosen[..., part] = highest(groups, count, living).flatten(-2)
        out[name] = _turned(chosen, scores, name)
    return out


def share(n: int, m: int, width: int) -> int:
    """How many the last group of a row keeps: all its share of n, rounded up, if it is a short one."""
    return -(-n * (width % m) // m)


SCOPES: dict[str, Callable[..., Mask]] = {"model": lowest, "layer": per_layer, "row": per_row}


def highest(values: Tensor, count: int, alive: Tensor | None = None) -> Tensor:
    """Which are the `count` highest along the last axis; among equals the later ones stay."""
    closing = values.shape[-1] - count
    if not values.numel() or closing <= 0:
        return torch.ones_like(values, dtype=torch.bool) if alive is None else alive.clone()
    order = values.argsort(dim=-1, stable=True)
    if alive is not None:  # a living weight may score -inf; dead ones come first all the same
        order = order.gather(-1, alive.gather(-1, order).byte().argsort(dim=-1, stable=True))
    kept = torch.ones_like(values, dtype=torch.bool).scatter_(-1, order[..., :closing], False)
    return kept if alive is None else kept & alive


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


def _rows(scores: Scores, mask: Mask | None) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Each matrix with its inputs along the last axis."""
    for name, value in scores.items():
        axis = getattr(scores, "axes", {}).get(name)
        if axis is None:
            raise EspalierError(
                f"{name} has no rows: rows are of matrices scored weight by weight. Score "
                "sites(model, 'weights'), or say which axis is summed over: Scores(..., axes={name: 1})"
            )
        value = value.cpu().movedim(axis, -1)
        _check_numbers(value)
        yield name, value, None if mask is None else mask[name].cpu().movedim(axis, -1)


def _turned(chosen: Tensor, scores: Scores, name: str) -> Tensor:
    return chosen.movedim(-1, scores.axes[name]).contiguous()


def _check_numbers(value: Tensor) -> None:
    if value.isnan().any():
        raise EspalierError("some scores are not numbers (nan), so there is no order among them")


def _lowest(scores: Scores, names: list[str], keep: float, mask: Mask | None) -> dict[str, Tensor]:
    """A threshold, and the first of those that lie on it: no order of all units is ever made."""
    units = sum(scores[n].numel() for n in names)
    wanted = round(keep * units)
    alive = {n: None if mask is None else mask[n].flatten().cpu() for n in names}
    living = sum(scores[n].numel() if (a := alive[n]) is None else int(a.sum()) for n in names)
    for n in names:
        _check_numbers(scores[n])
    if wanted > living:
        raise EspalierError(f"only {living} of {units} units live; {wanted} cannot be kept")
    closing = living - wanted
    chosen: dict[str, Tensor] = {}
    edge, closed = _edge(scores, alive, closing)
    on_it = closing - closed  # of those that score just the threshold, so many go
    for n in names:
        value, living_here = _plain(scores[n]).to(edge.dtype), alive[n]
        kept = value >= edge if closing else torch.ones_like(value, dtype=torch.bool)
        if on_it:
            equal = value == edge
            if living_here is not None:
                equal &= living_here
            first = equal.nonzero().flatten()[:on_it]
            kept[first] = False
            on_it -= len(first)
        if living_here is not None:
            kept &= living_here
        chosen[n] = kept.view(scores[n].shape)
    return chosen


def _edge(scores: Scores, alive: dict[str, Tensor | None], closing: int) -> tuple[Tensor, int]:
    """The score of the last unit that closes, and how many lie below it."""
    parts = [_plain(scores[n]) if a is None else _plain(scores[n])[a] for n, a in alive.items()]
    pool = torch.cat(parts)
    if not closing:
        return pool.new_zeros(()), 0
    pool.numpy().partition(closing - 1)  # in place: torch's own selection makes an index of each
    edge = pool[closing - 1].clone()
    return edge, int((pool[:closing] < edge).sum())


def _plain(value: Tensor) -> Tensor:
    """Flat, in a precision in which values can be compared exactly."""
    flat = value.detach().flatten().cpu()
    return flat if flat.dtype in (torch.float32, torch.float64) else flat.double()
