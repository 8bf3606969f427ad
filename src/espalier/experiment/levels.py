"""Levels: which fractions are removed, and whether a model that is sparse already can reach them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from ..core.errors import InvalidValueError
from ..core.mask import Mask
from ..selection.schedules import ONE_SHOT
from ..selection.scopes import LAYER, ROW, groups_of, out_of_reach, removed_by
from ..training.held_mask import mask_of_zeros
from .method import Method
from .recovery import Recovery
from .session import Session
from .walk import count_removed

SLACK = 0.005  # of all weights: a level that misses by more is another level
MOST = 1000
DEFAULTS = {"weights": (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8)}
ALL = (1.0,)
TRAINED_LEVELS = (0.25, 0.5, 0.75)  # of heads and neurons, where no levels are given


def parse_levels(remove: float | str | Sequence[float] | None, target: str) -> list[float]:
    """Return rising fractions from 0.5, "0.5,0.7", "0.5:0.8:0.05" (from, to, step) or a list.

    >>> parse_levels("0.5:0.8:0.1", "weights")
    [0.5, 0.6, 0.7, 0.8]
    """
    if remove is None:
        return list(DEFAULTS.get(target, ALL))
    try:
        if isinstance(remove, str) and ":" in remove:
            first, last, step = (float(piece) for piece in remove.split(":"))
            if not step > 0 or last < first or (last - first) / step > MOST:
                raise ValueError
            found = [first + i * step for i in range(int((last - first) / step + 1e-9) + 1)]
        elif isinstance(remove, str):
            found = [float(piece) for piece in remove.split(",") if piece.strip()]
        else:
            found = [float(one) for one in (remove if isinstance(remove, Sequence) else [remove])]
    except (TypeError, ValueError):
        found = []
    found = sorted({round(level, 6) for level in found})
    if not found or not all(0 < level <= 1 for level in found):
        raise InvalidValueError(
            "`remove` is a fraction above 0, up to 1: 0.5, several as 0.5,0.6,0.7, or from:to:step as "
            f"0.5:0.8:0.05; got {remove!r}",
            "remove",
        )
    return found


def check_reachable(session: Session, methods: Sequence[Method], levels: Sequence[float]) -> None:
    """Raise if a sparse model has more zeros than a level asks for, in total or within a method's scope."""
    kept = mask_of_zeros(session.sites)
    zeros, size = 1 - kept.kept, sum(m.numel() for m in kept.values())
    for method in methods:
        for level in levels if groups_of(method.scope) is None else ():
            short = sum(
                _missing(count, group, level) for count, group in _groups(session, kept, method.scope)
            )
            if out_of_reach(method.scope, level, kept) or short > SLACK * size:
                least = math.ceil(1000 * max(zeros, level + short / size)) / 1000
                raise InvalidValueError(
                    f"{100 * zeros:.4g} % of the weights of {session.name} are zero already, so "
                    f"{method.label} cannot remove exactly {level:g} of each {method.scope}: `remove` must "
                    f"be about {least:g} or more",
                    "remove",
                )


def check_groups(methods: Sequence[Method], levels: Sequence[float], schedule: str | None) -> None:
    """Raise if a method that keeps N of M is to reach a level other than its own."""
    for method in methods:
        if groups_of(method.scope):
            for level in levels:
                removal(method, level)
            if schedule not in (None, ONE_SHOT):
                raise InvalidValueError(
                    f"{method.label} has no intermediate fractions: `schedule` must be {ONE_SHOT!r}",
                    "schedule",
                )


def _groups(session: Session, kept: Mask, scope: str) -> list[tuple[Tensor, int]]:
    """How many are kept in each of what a scope compares, and of how many."""
    if scope == ROW:
        axes = {site.name: site.input_axis for site in session.sites}
        return [(m.sum(axes[name]), m.shape[axes[name]]) for name, m in kept.items()]
    return [(m.sum(), m.numel()) for m in kept.values()] if scope == LAYER else []


def _missing(kept: Tensor, size: int, remove: float) -> int:
    """How many weights should be kept but are zero."""
    return int((round((1 - remove) * size) - kept).clamp(min=0).sum())


def removal(method: Method, remove: float | None) -> float:
    """Return the one fraction that a method removes: its scope's for N:M, else `remove`."""
    if remove == 0:
        raise InvalidValueError("`remove` is a fraction above 0: 0 removes nothing", "remove")
    return removed_by(method.scope, remove)


def check_levels(session: Session, methods: Sequence[Method], remove: Sequence[float]) -> None:
    """Raise before the first hour, not after it."""
    session.check_metric()
    if not remove or not all(0 < fraction <= 1 for fraction in remove):
        raise InvalidValueError(f"`remove` is one or more fractions above 0, up to 1; got {remove}", "remove")
    if session.target == "weights":
        check_reachable(session, methods, remove)
    elif round((1 - max(remove)) * session.units) >= session.units:
        raise InvalidValueError(f"`remove` {max(remove):g} of {session.units} units removes none", "remove")


def trained_levels(session: Session, remove: Sequence[float], recovery: Recovery | None) -> list[float]:
    """Return the levels that are also trained: all of weights, few of heads and neurons."""
    if recovery is None:
        return []
    if session.target == "weights":
        return list(remove)
    units, last = session.units, remove[-1]
    ends = [last] if last < 1 else []
    levels = remove if len(remove) > 1 else [*(x for x in TRAINED_LEVELS if x < last), *ends]
    return sorted({count_removed(units, level) / units for level in levels} - {0.0})
