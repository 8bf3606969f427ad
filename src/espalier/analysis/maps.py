"""The layer × unit maps of a run: scores, and pooled changes of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..core.errors import FormatError
from ..io.json_file import read_json
from ..io.rows import read_rows
from .results import Unit


def read_scores(path: Path, layers: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the scores of the unpruned model by criterion (by method, if options make a second one)."""
    out: dict[str, np.ndarray] = {}
    for line, raw in enumerate(read_rows(path), 1):
        try:
            if not raw.get("removed", raw.get("k", 0)):
                method = str(raw.get("method", raw.get("strategy")))
                name = str(raw.get("criterion") or method)
                out.setdefault(method if name in out else name, _grid(raw["scores"], layers))
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{path}, line {line} holds no scores of this model: {error}", path) from None
    return out


def read_pooling(path: Path, layers: Sequence[int]) -> dict[Unit, dict[str, np.ndarray]]:
    """Return the change of every unit's gradient by the unit that was cut and by role."""
    if not path.exists():
        return {}
    raw = read_json(path)
    out: dict[Unit, dict[str, np.ndarray]] = {}
    try:
        for layer, unit in raw["cut"]:
            change = raw["change"][f"{layer},{unit}"]
            if not 0 <= unit < layers[layer]:
                raise ValueError(f"layer {layer} has no unit {unit}")
            out[int(layer), int(unit)] = {role: _grid(change[role], layers) for role in raw["roles"]}
        return out
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        message = f"{path} is damaged ({type(error).__name__}: {error}); it has cut, roles and change"
        raise FormatError(message, path) from None


def _grid(rows: Sequence[Sequence[float | None]], layers: Sequence[int]) -> np.ndarray:
    """Return [layers, units] with nan where there is no unit, or no finite score for it."""
    out = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for i, row in enumerate(rows):
        out[i, : len(row)] = [np.nan if value is None else float(value) for value in row]
    if out.shape != (len(layers), max(layers)):
        size = " × ".join(map(str, out.shape))
        raise ValueError(f"a map of {size} units; the model has {len(layers)} × {max(layers)}")
    out[~np.isfinite(out)] = np.nan
    return out
