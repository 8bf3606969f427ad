"""From scores to masks: remove the lowest of the whole model, of each site, of each row, or N:M.

A scope is a set of units that are compared with each other. The number removed is exact, also among ties.
"""

import math
from collections import ChainMap

import torch
from torch import Tensor

from ..core.errors import InvalidValueError, UnknownNameError
from ..core.mask import Mask, Scores

SCOPES = GLOBAL, LAYER, ROW = "global", "layer", "row"
EXACT_IN_FLOAT32 = (torch.float32, torch.bfloat16, torch.float16)


def remove_lowest(
    scores: Scores, remove: float | None = None, *, scope: str = GLOBAL, mask: Mask | None = None
) -> Mask:
    """Return the mask that removes the lowest-scored fraction `remove` of the units within each scope.

    global   of the whole model, heads and neurons apart since their scores have no common scale; whole
             attention and feed-forward sublayers together
    layer    of each site
    row      of each output row of a matrix, as Wanda compares
    N:M      keep N of every M neighbours along the inputs; `remove` follows from it

    Exactly `round((1 - remove) * units)` are kept; among equal scores the earlier unit is removed. Units
    that `mask` removed stay removed, and a layer, row or group in which it keeps fewer keeps those.

    >>> remove_lowest(Scores({"0/heads": torch.tensor([0.3, 0.1, 0.2, 0.4])}), 0.5)
    {'0/heads': tensor([ True, False, False,  True])}
    """
    if not scores:
        raise InvalidValueError("there are no scores to choose by", "scores")
    remove, groups = removed_by(scope, remove), groups_of(scope)
    if groups or scope == ROW:
        return _within_rows(scores, mask, remove, groups)
    compared: dict[str, list[str]] = {}
    for name in scores:
        kind = target_of(name)
        kind = "sublayers" if kind in ("attention", "ffn") else kind
        compared.setdefault(kind if scope == GLOBAL else name, []).append(name)
    parts = [_lowest(scores, names, remove, mask, keep_fewer=scope == LAYER) for names in compared.values()]
    chosen = ChainMap(*parts)
    return Mask({name: chosen[name] for name in scores})


def fraction(remove: float | None) -> float:
    """Check a fraction of units to remove."""
    if isinstance(remove, bool) or not isinstance(remove, (int, float)) or not 0 <= remove <= 1:
        raise InvalidValueError(f"`remove` is a fraction of the units from 0 to 1; got {remove!r}", "remove")
    return remove


def groups_of(scope: str) -> tuple[int, int] | None:
    """Return (2, 4) for "2:4", None for the other scopes; raise for anything else."""
    n, colon, m = scope.partition(":")
    if colon and n.isdecimal() and m.isdecimal() and 0 < int(n) <= int(m):
        return int(n), int(m)
    if scope not in SCOPES:
        raise UnknownNameError("scope", scope, [*SCOPES, "N:M, as in 2:4"], "scope")
    return None


def removed_by(scope: str, remove: float | None) -> float:
    """Return the fraction that a scope removes: 0.5 for "2:4", which needs no `remove`; else `remove`."""
    groups = groups_of(scope)
    if groups is None:
        return fraction(remove)
    own = 1 - groups[0] / groups[1]
    if remove is not None and abs(remove - own) > 1e-9:
        raise InvalidValueError(f"`scope` {scope} removes {own:g}, not `remove` {remove:g}", "remove")
    return own


def out_of_reach(scope: str, remove: float, mask: Mask) -> bool:
    """Return whether `mask` keeps fewer units than `remove` would; only a global total must be exact."""
    return scope == GLOBAL and 1 - remove > mask.kept


def kept_in_last_group(n: int, m: int, width: int) -> int:
    """Return how many the last, shorter group of a row keeps: its share of n, rounded up."""
    return -(-n * (width % m) // m)


def target_of(name: str) -> str:
    """`encoder.layer.0/cross_heads` -> heads; a path of a weight -> weights."""
    part = name.rpartition("/")[2].removeprefix("cross_")
    return part if part in ("heads", "neurons", "slots", "layers", "attention", "ffn") else "weights"


def _within_rows(
    scores: Scores, mask: Mask | None, remove: float, groups: tuple[int, int] | None = None
) -> Mask:
    """Keep a fraction of each row, or n of every m of its weights; rows run along the input axis."""
    out = Mask()
    for name, value in scores.items():
        axis = getattr(scores, "axes", {}).get(name)
        if axis is None:
            raise InvalidValueError(
                f"{name} has no rows: only matrices scored weight by weight do. Score "
                "sites(model, 'weights'), or name the input axis: Scores(..., axes={name: 1})",
                "scope",
            )
        _check_numbers(value)
        rows = value.cpu().movedim(axis, -1)
        allowed = None if mask is None else mask[name].cpu().movedim(axis, -1)
        width = rows.shape[-1]
        n, m = groups or (round((1 - remove) * width), max(1, width))
        whole = width // m * m
        kept = torch.ones(rows.shape, dtype=torch.bool)
        for part, size, count in (
            (slice(0, whole), m, n),
            (slice(whole, None), max(1, width - whole), kept_in_last_group(n, m, width)),
        ):
            values = rows[..., part].unflatten(-1, (-1, size))
            inside = None if allowed is None else allowed[..., part].unflatten(-1, (-1, size))
            kept[..., part] = keep_highest(values, count, inside).flatten(-2)
        out[name] = kept.movedim(-1, axis).contiguous()
    return out


def _check_numbers(value: Tensor) -> None:
    if value.isnan().any():
        raise InvalidValueError("some scores are nan, so there is no order among them", "scores")


def _lowest(
    scores: Scores, names: list[str], remove: float, mask: Mask | None, *, keep_fewer: bool
) -> dict[str, Tensor]:
    """Find a threshold, then remove the first of those that equal it."""
    exact = any(scores[n].dtype not in EXACT_IN_FLOAT32 for n in names)
    dtype = torch.float64 if exact else torch.float32
    value = {n: scores[n].detach().flatten().cpu().to(dtype) for n in names}
    allowed = {n: None if mask is None else mask[n].flatten().cpu() for n in names}
    units = sum(v.numel() for v in value.values())
    left = sum(v.numel() if (a := allowed[n]) is None else int(a.sum()) for n, v in value.items())
    wanted = round((1 - remove) * units)
    for v in value.values():
        _check_numbers(v)
    if keep_fewer:
        wanted = min(wanted, left)
    if wanted > left:
        raise InvalidValueError(
            f"{units - left} of {units} units are removed or zero already, so `remove` {remove:g} cannot be "
            f"reached; it must be at least {math.ceil(1000 * (1 - left / units)) / 1000:g}",
            "remove",
        )
    removing = left - wanted
    parts = [v if (a := allowed[n]) is None else v[a] for n, v in value.items()]
    edge, below = kth_smallest(parts, removing) if removing else (torch.tensor(-torch.inf), 0)
    tied, chosen = removing - below, {}  # so many of those that equal the threshold are removed
    for n in names:
        kept, inside = value[n] >= edge, allowed[n]
        if tied:
            equal = value[n] == edge
            if inside is not None:
                equal &= inside
            first = equal.nonzero().flatten()[:tied]
            kept[first] = False
            tied -= len(first)
        if inside is not None:
            kept &= inside
        chosen[n] = kept.view(scores[n].shape)
    return chosen


def keep_highest(values: Tensor, count: int, allowed: Tensor | None = None) -> Tensor:
    """Return a mask of the `count` highest along the last axis; among equals the later are kept.

    Values outside `allowed` are never kept; where fewer are allowed than `count`, those are kept.
    """
    removing = values.shape[-1] - count
    if not values.numel() or removing <= 0:
        return torch.ones_like(values, dtype=torch.bool) if allowed is None else allowed.clone()
    if allowed is not None:
        values = values.masked_fill(~allowed, -torch.inf)
    edge = values.kthvalue(removing, dim=-1, keepdim=True).values
    tied = values == edge
    to_remove = removing - (values < edge).sum(-1, keepdim=True)  # of those that equal the threshold
    if allowed is not None:  # an allowed value may be -inf; the others are removed before it
        to_remove -= (tied & ~allowed).sum(-1, keepdim=True)
        tied &= allowed
    kept = (values > edge) | (tied & (tied.cumsum(-1, dtype=torch.int32) > to_remove))
    return kept if allowed is None else kept & allowed


def kth_smallest(parts: list[Tensor], k: int) -> tuple[Tensor, int]:
    """Return the k-th smallest of all values, counted from 1, and how many are smaller.

    Floats read as integers keep their order but for the sign, so their digits are counted 16 bits at a time:
    the time does not depend on ties and no copy of all values is made.
    """
    bits = 8 * parts[0].element_size()
    found, below = 0, 0
    for shift in range(bits - 16, -1, -16):
        counts = torch.zeros(1 << 16, dtype=torch.long)
        for part in parts:
            integers = _ordered_integers(part)
            if shift == bits - 16:
                digit = (integers >> shift) + (1 << 15)
            else:
                digit = (integers[integers >> (shift + 16) == found] >> shift) & 0xFFFF
            counts += torch.bincount(digit, minlength=1 << 16)
        upto = counts.cumsum(0)
        here = int(torch.searchsorted(upto, k - below))
        below += int(upto[here] - counts[here])
        found = (found << 16 | here) if shift < bits - 16 else here - (1 << 15)
    integer = torch.tensor(found, dtype=torch.int32 if bits == 32 else torch.int64)
    return _flip_negative(integer).view(parts[0].dtype), below


def _ordered_integers(value: Tensor) -> Tensor:
    """Integers in the same order as the floats; −0 equals 0."""
    return _flip_negative((value + 0.0).view(torch.int32 if value.element_size() == 4 else torch.int64))


def _flip_negative(integer: Tensor) -> Tensor:
    """Invert all bits but the sign of negative numbers; an involution."""
    most = torch.iinfo(integer.dtype).max
    return integer ^ ((integer >> (8 * integer.element_size() - 1)) & most)
