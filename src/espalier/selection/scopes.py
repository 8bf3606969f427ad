"""From scores to masks: of the whole model, of each site, of each row, or N of every M."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..core.errors import EspalierError, suggest
from ..core.mask import Mask, Scores


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
    """Keep the same fraction of every site: an even cut, which a plain export can describe.

    A site in which fewer live in `mask` keeps those.
    """
    chosen: dict[str, Tensor] = {}
    for name in _names(scores, keep):
        chosen |= _lowest(scores, [name], keep, mask, spare=True)
    return Mask(chosen)


def per_row(scores: Scores, keep: float, *, mask: Mask | None = None) -> Mask:
    """Keep the same number of weights of every output row, `round(keep * inputs)`: what Wanda compares.

    A row in which fewer live in `mask` keeps those.
    """
    out = Mask()
    _names(scores, keep)
    for name, rows, alive in _rows(scores, mask):
        kept = highest(rows, round(keep * rows.shape[-1]), alive)
        out[name] = _turned(kept, scores, name)
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


SHORT = (torch.float32, torch.bfloat16, torch.float16)  # float32 holds them exactly
SCOPES: dict[str, Callable[..., Mask]] = {"global": lowest, "layer": per_layer, "row": per_row}


def chooser(scope: str) -> Callable[..., Mask]:
    """What closes the lowest of a scope: global, layer, row, or N:M, which needs no fraction."""
    n, colon, m = scope.partition(":")
    if colon and n.isdigit() and m.isdigit():
        n_m(Scores({"0": torch.ones(1, int(m) or 1)}, axes={"0": 1}), int(n), int(m))  # said wrong?

        def of_neighbours(scores: Scores, keep: float, *, mask: Mask | None = None) -> Mask:
            return n_m(scores, int(n), int(m), mask=mask)

        return of_neighbours
    if scope not in SCOPES:
        raise EspalierError(
            f"no scope {scope!r}{suggest(scope, SCOPES)} There are: {', '.join(SCOPES)}, and N:M as in 2:4"
        )
    return SCOPES[scope]


def highest(values: Tensor, count: int, alive: Tensor | None = None) -> Tensor:
    """Which are the `count` highest along the last axis; among equals the later ones stay."""
    closing = values.shape[-1] - count
    if not values.numel() or closing <= 0:
        return torch.ones_like(values, dtype=torch.bool) if alive is None else alive.clone()
    if alive is not None:
        values = values.masked_fill(~alive, -torch.inf)
    edge = values.kthvalue(closing, dim=-1, keepdim=True).values
    on_it = values == edge
    going = closing - (values < edge).sum(-1, keepdim=True)  # of those that score just the edge
    if alive is not None:  # a living weight may score -inf; dead ones go first all the same
        going -= (on_it & ~alive).sum(-1, keepdim=True)
        on_it &= alive
    kept = (values > edge) | (on_it & (on_it.cumsum(-1, dtype=torch.int32) > going))
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


def _lowest(
    scores: Scores, names: list[str], keep: float, mask: Mask | None, *, spare: bool = False
) -> dict[str, Tensor]:
    """A threshold, and the first of those that lie on it: no order of all units is ever made."""
    exact = any(scores[n].dtype not in SHORT for n in names)
    value = {n: _flat(scores[n], torch.float64 if exact else torch.float32) for n in names}
    alive = {n: None if mask is None else mask[n].flatten().cpu() for n in names}
    units = sum(v.numel() for v in value.values())
    living = sum(v.numel() if (a := alive[n]) is None else int(a.sum()) for n, v in value.items())
    wanted = round(keep * units)
    for v in value.values():
        _check_numbers(v)
    if spare:
        wanted = min(wanted, living)
    if wanted > living:
        raise EspalierError(
            f"only {living} of {units} units live, the others were closed or zero before: {wanted} of them "
            f"cannot be kept, but up to {math.floor(1000 * living / units) / 1000:g} of all"
        )
    closing = living - wanted
    parts = [v if (a := alive[n]) is None else v[a] for n, v in value.items()]
    edge, below = smallest(parts, closing) if closing else (torch.tensor(-torch.inf), 0)
    on_it, chosen = closing - below, {}  # of those that score just the edge, so many go
    for n in names:
        kept, living_here = value[n] >= edge, alive[n]
        if on_it:
            equal = value[n] == edge
            if living_here is not None:
                equal &= living_here
            first = equal.nonzero().flatten()[:on_it]
            kept[first] = False
            on_it -= len(first)
        if living_here is not None:
            kept &= living_here
        chosen[n] = kept.view(scores[n].shape)
    return chosen


def smallest(parts: list[Tensor], k: int) -> tuple[Tensor, int]:
    """The k-th smallest of all values, counted from 1, and how many are smaller.

    Floating numbers, read as whole ones, keep their order but for the sign: so their digits are counted, 16
    bits at a time. It takes as long whatever the ties, and no copy of all values is made.
    """
    bits = 8 * parts[0].element_size()
    found, below = 0, 0
    for shift in range(bits - 16, -1, -16):
        counts = torch.zeros(1 << 16, dtype=torch.long)
        for part in parts:
            whole = _whole(part)
            if shift == bits - 16:
                digit = (whole >> shift) + (1 << 15)
            else:
                digit = (whole[whole >> (shift + 16) == found] >> shift) & 0xFFFF
            counts += torch.bincount(digit, minlength=1 << 16)
        upto = counts.cumsum(0)
        here = int(torch.searchsorted(upto, k - below))
        below += int(upto[here] - counts[here])
        found = (found << 16 | here) if shift < bits - 16 else here - (1 << 15)
    whole = torch.tensor(found, dtype=torch.int32 if bits == 32 else torch.int64)
    return _turned_back(whole).view(parts[0].dtype), below


def _whole(value: Tensor) -> Tensor:
    """Whole numbers in the same order; −0 is 0."""
    return _turned_back(
        (value + 0.0).view(torch.int32 if value.element_size() == 4 else torch.int64)
    )


def _turned_back(whole: Tensor) -> Tensor:
    """Of a negative number, all bits but the sign the other way round; twice is nothing."""
    most = torch.iinfo(whole.dtype).max
    return whole ^ ((whole >> (8 * whole.element_size() - 1)) & most)


def _flat(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.detach().flatten().cpu().to(dtype)
