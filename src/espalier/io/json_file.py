"""One JSON file, written so that a kill leaves the old one or the new, never half of one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..core.errors import EspalierError


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EspalierError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise EspalierError(f"{path} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise EspalierError(f"{path} is damaged: it should hold one JSON object")
    return value


def write_json(path: Path, value: Any) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(
            json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
            encoding="utf-8",
        )
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise EspalierError(f"cannot write {path}: {error.strerror}") from None
