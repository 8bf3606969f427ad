"""Columns combined: a sparse matrix packed into fewer columns (Kung et al. 2019, arXiv 1811.04770).

Columns whose weights rarely share a row form a group. Where several do, the largest is kept and the others
are removed; so a group has one weight in each row, and needs one column of hardware that picks its input.
"""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor

from ..core.errors import InvalidValueError


def combine_columns(matrix: Tensor, width: int = 8, conflicts: float = 0.5) -> list[list[int]]:
    """Return groups of at most `width` columns that lose at most `conflicts` weights a row, on average.

    Dense columns are placed first, each into the group that would then have the fewest empty rows.
    """
    if matrix.dim() != 2:
        raise InvalidValueError(f"`matrix` has two dimensions; got {tuple(matrix.shape)}", "matrix")
    if type(width) is not int or width < 1 or not 0 <= conflicts < float("inf"):
        raise InvalidValueError(
            f"`width` is a number of columns from 1, `conflicts` one of weights a row from 0; got {width!r} "
            f"and {conflicts}",
            "width",
        )
    used = matrix != 0
    groups: list[list[int]] = []
    filled: list[Tensor] = []  # rows in which a group has a weight
    lost: list[int] = []
    for column in used.sum(0).argsort(descending=True, stable=True).tolist():
        rows = used[:, column]
        clash = [int((rows & taken).sum()) for taken in filled]
        allowed = conflicts * len(matrix)
        fits = [i for i, g in enumerate(groups) if len(g) < width and lost[i] + clash[i] <= allowed]
        if fits:
            best = max(fits, key=lambda i: int((rows | filled[i]).sum()))
            groups[best].append(column)
            filled[best] |= rows
            lost[best] += clash[best]
        else:
            groups, filled, lost = [*groups, [column]], [*filled, rows.clone()], [*lost, 0]
    return [sorted(group) for group in groups]


def pack_columns(matrix: Tensor, groups: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return the largest weight of each row in each group and the column that it is of, [rows, groups]."""
    if sorted(chain.from_iterable(groups)) != list(range(matrix.shape[1])):
        raise InvalidValueError(f"`groups` hold each of {matrix.shape[1]} columns once", "groups")
    columns = [torch.tensor(g)[matrix[:, g].abs().argmax(1).cpu()] for g in groups]
    index = torch.stack(columns, 1).to(matrix.device)
    return matrix.gather(1, index), index
