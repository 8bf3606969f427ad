"""Exactly k of many numbers, whatever the ties, without sorting them all."""

import torch
from torch import Tensor

EXACT_IN_FLOAT32 = (torch.float32, torch.bfloat16, torch.float16)


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
