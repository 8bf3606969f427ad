"""A model that comes sparse: which levels lie above what it came with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..core.errors import EspalierError
from ..training.held_mask import zeros_of
from .study_method import Contender

SLACK = 0.005  # of all weights: a level that misses by more is another level


def check_levels(sites: Sequence[Any], contenders: Sequence[Contender], levels: Sequence[float]) -> None:
    """Refuse what would be called by a level and be sparser than it."""
    living = zeros_of(sites)
    own = 1 - living.kept
    below = [level for level in levels if level < own - 1e-9]
    if below and round((1 - below[0]) * _size(living)) > _count(living):
        raise EspalierError(
            f"{100 * own:.4g} % of the weights are zero before anything is pruned, so level {below[0]:g} "
            f"cannot be reached: give --levels above {own:.4g}"
        )
    for one in contenders if own else ():
        groups = _groups(sites, living, one.scope)
        for level in levels:
            short = sum(_missing(kept, size, 1 - level) for kept, size in groups)
            if short > SLACK * _size(living):
                reached = level + short / _size(living)
                raise EspalierError(
                    f"{one.label} at level {level:g} would be {100 * reached:.3g} % zero: {100 * own:.4g} % "
                    f"are zero before anything is pruned, and some a {one.scope} more than {level:g}. Give "
                    f"higher --levels, or {one.criterion}:scope=global"
                )


def _groups(sites: Sequence[Any], living: Any, scope: str) -> list[tuple[Tensor, int]]:
    """How many live in each of what a scope compares, and of how many."""
    if scope == "row":
        axes = {site.name: site.input_axis for site in sites}
        return [(m.sum(axes[name]), m.shape[axes[name]]) for name, m in living.items()]
    if scope == "layer":
        return [(m.sum(), m.numel()) for m in living.values()]
    return []  # the whole model: looked at before


def _missing(kept: Tensor, size: int, keep: float) -> int:
    """Weights that should be kept where they are gone."""
    return int((round(keep * size) - kept).clamp(min=0).sum())


def _size(living: Any) -> int:
    return sum(m.numel() for m in living.values())


def _count(living: Any) -> int:
    return sum(int(m.sum()) for m in living.values())
