"""JSON files that hold one object. A killed write leaves the old file or the new one, never half of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core.strict_json import parse_json
from .atomic import reading, write_file


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in the file."""
    with reading(path, "a JSON object"):
        value = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError(f"it holds a {type(value).__name__}")
        return value


def write_json(path: Path, value: Any) -> None:
    """Write a value that JSON can hold; NaN and infinity are refused."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    with write_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def edit_config(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the object in a config file and write it back, in the style of transformers."""
    value = read_json(path)
    yield value
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
