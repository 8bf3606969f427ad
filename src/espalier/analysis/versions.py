"""Rows and run.json of version 1 in the form of version 2."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import FormatError
from .curves import ONE_SHOT

VERSION = 2
RUN_NAMES = {"strategies": "methods", "kind": "target", "parts": "splits"}
RUN_NAMES |= {"within": "tolerance", "length": "max_length"}
TRAINING_NAMES = {"batch": "batch_size", "rate": "lr", "refresh": "mask_interval"}
ROW_NAMES = {"strategy": "method", "way": "phase", "cut": "order", "refresh": "mask_interval"}
COSTS = ("units", "parameters", "macs", "zeros", "weights", "all_zeros", "bytes")


def check_version(raw: Mapping[str, Any], path: Path) -> None:
    """Refuse a run or a row of a newer version."""
    version = raw.get("version", VERSION)
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise FormatError(
            f"{path} has version {version!r}, this espalier reads up to {VERSION}: upgrade", path
        )


def upgrade_run(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the content of run.json as version 2 has it."""
    check_version(raw, path)
    if raw.get("version") == VERSION:
        return raw
    out = _rename(raw, RUN_NAMES)
    if out.get("training"):
        out["training"] = _rename(out["training"], TRAINING_NAMES)
    return out


def upgrade_row(raw: dict[str, Any], units: int) -> dict[str, Any]:
    """Return a row as version 2 has it."""
    if "strategy" not in raw:
        return raw
    out = {"phase": ONE_SHOT, "trial": None, "order": None, **_rename(raw, ROW_NAMES)}
    out["removed"] = raw["level"] if "level" in raw else int(raw["k"]) / units
    out["cost"] = {name: raw[name] for name in COSTS if name in raw}
    return out


def _rename(raw: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in raw.items()}
