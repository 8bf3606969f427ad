"""The layer × head maps that lie beside a run: scores, and pooled changes of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..core.errors import EspalierError
from ..io.json_file import read_json
from ..io.rows import read_rows
from .results import Unit


def scores(path: Path, layers: Sequence[int]) -> dict[str, np.ndarray]:
    out: dict[str, np.ndarray] = {}
    for line, raw in enumerate(read_rows(path), 1):
        try:
            if raw.get("k", 0) == 0:
                name = str(raw.get("criterion") or raw["strategy"])
                if name in out:  # the same criterion with other options
                    name = str(raw["strategy"])
                out.setdefault(name, _grid(raw["scores"]))
        except (KeyError, TypeError, ValueError) as error:
            raise EspalierError(f"{path}, line {line} holds no scores: {error}") from None
    for name, grid in out.items():
        if grid.shape != (len(layers), max(layers)):
            raise EspalierError(
                f"{path}: {name} scores {' × '.join(map(str, grid.shape))} units; the model has "
                f"{len(layers)} × {max(layers)}"
            )
    return out


def pooling(path: Path, layers: Sequence[int]) -> dict[Unit, dict[str, np.ndarray]]:
    if not path.exists():
        return {}
    raw = read_json(path)
    out: dict[Unit, dict[str, np.ndarray]] = {}
    try:
        for layer, head in raw["cut"]:
            change = {r: _grid(raw["change"][f"{layer},{head}"][r]) for r in raw["roles"]}
            if any(grid.shape != (len(layers), max(layers)) for grid in change.values()):
                raise ValueError(f"the maps are not those of {len(layers)} layers")
            if not 0 <= head < layers[layer]:
                raise ValueError(f"no unit {head} in layer {layer}")
            out[int(layer), int(head)] = change
        return out
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise EspalierError(
            f"{path} is damaged ({type(error).__name__}: {error}); it has cut, roles and change"
        ) from None


def _grid(rows: Sequence[Sequence[float | None]]) -> np.ndarray:
    """Layer × head with nan where there is no unit, or no score for it."""
    out = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for i, row in enumerate(rows):
        out[i, : len(row)] = [np.nan if value is None else float(value) for value in row]
    out[~np.isfinite(out)] = np.nan
    return out
