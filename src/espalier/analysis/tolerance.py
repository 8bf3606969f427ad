"""How far below the unpruned model a score may lie: 0.01 or "1pt" of the metric, or "1%" of the model's own.

A point is a hundredth of a metric from 0 to 1. Of a perplexity, differences are taken of the logarithm.
"""

from __future__ import annotations

import math
import re

from ..core.errors import InvalidValueError

Tolerance = float | str  # a difference of scores, or a text with %
FORM = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(e-?[0-9]{1,2})?\s*(pt|%)?\s*", re.ASCII | re.IGNORECASE)


def parse_tolerance(given: float | str) -> Tolerance:
    """Return a number from 0 to below 1, or a text such as "1%".

    >>> parse_tolerance("1pt"), parse_tolerance("1 %"), parse_tolerance(0.02)
    (0.01, '1%', 0.02)
    """
    number_given = isinstance(given, (int, float)) and not isinstance(given, bool)
    found = FORM.fullmatch(repr(float(given)) if number_given else str(given))
    if isinstance(given, bool) or found is None:
        raise InvalidValueError(f"`tolerance` is 0.01, 1pt or 1%; got {given!r}", "tolerance")
    number, unit = float(found[1] + (found[2] or "")), (found[3] or "").lower()
    if not number < (100 if unit else 1):
        instead = "one point is 1pt or 0.01, one percent of the unpruned model's own value 1%"
        raise InvalidValueError(f"`tolerance` {given} would allow any loss: {instead}", "tolerance")
    return f"{number:g}%" if unit == "%" else number / 100 if unit else number


def allowed_drop(tolerance: Tolerance, base: float, log: bool) -> float:
    """Return how far a score may fall below that of the unpruned model."""
    if not isinstance(tolerance, str):
        return tolerance
    share = float(tolerance.removesuffix("%")) / 100
    return math.log1p(share) if log else share * abs(base)
