"""JSON as the standard has it: no NaN, no infinity; what nests too deep is an ordinary error."""

from __future__ import annotations

import json
import math
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the value; raise ValueError for anything that is not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def plain_json(value: Any) -> Any:
    """Return the value as JSON can hold it: infinite numbers become null, other objects their text."""
    if isinstance(value, dict):
        return {str(name): plain_json(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(one) for one in value]
    if hasattr(value, "tolist"):  # an array, a tensor, or a number of one
        return plain_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
