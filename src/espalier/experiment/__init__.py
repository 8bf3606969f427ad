"""Experiments: strategies compared on one model and one task, row by row, in a folder that can be resumed."""

from __future__ import annotations

from .method import Strategy, parse
from .runner import Progress, compare, mask_at, removed

__all__ = ["Progress", "Strategy", "compare", "mask_at", "parse", "removed"]
