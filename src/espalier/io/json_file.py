"""JSON files that hold one object. A killed write leaves the old file or the new one, never half of one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core.errors import FolderError, FormatError


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FolderError(f"cannot read {path}: {error.strerror}", path) from None
    except ValueError as error:
        raise FormatError(f"{path} is damaged: {error}", path) from None
    if not isinstance(value, dict):
        raise FormatError(f"{path} is damaged: it holds a {type(value).__name__}, not an object", path)
    return value


def write_json(path: Path, value: Any) -> None:
    """Write a value that JSON can hold; NaN and infinity are refused."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise FolderError(f"cannot write {path}: {error.strerror}", path) from None


@contextmanager
def edit_config(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the object in a config file and write it back, in the style of transformers."""
    value = read_json(path)
    yield value
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
