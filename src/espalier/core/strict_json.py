"""JSON as the standard has it: no NaN, no infinity; what nests too deep is an ordinary error."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the value; raise ValueError for anything that is not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
