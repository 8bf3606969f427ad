"""Results of one experiment on one model: curves, orders, costs, predictions, layer × unit maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import FormatError, UnknownNameError
from ..evaluation import metrics
from ..io.files import read_json
from ..io.rows import read_rows
from .curves import BASE, ONE_SHOT, PHASES, Curve, Tolerance

Unit = tuple[int, int]  # layer, unit
Key = tuple[str, str]  # method, phase
BASE_KEY = (BASE, ONE_SHOT)


@dataclass(frozen=True)
class Cost:
    """What a model costs at one level; None for what was not counted."""

    parameters: int | None = None
    macs: int | None = None
    zeros: int | None = None  # in the pruned matrices
    weights: int | None = None  # of the pruned matrices
    all_zeros: int | None = None  # in all parameters
    dense_bytes: int | None = None  # of a plain file
    sparse_bytes: int | None = None  # of a sparse file
    weight_bytes: int = 4  # of one parameter, in the dtype that the model is stored in
    latency: float | None = None  # measured seconds of a pass, the median

    @property
    def megabytes(self) -> float | None:
        """The size of the file in units of 2^20 bytes: sparse if it was counted, else all parameters."""
        return self._megabytes(self.sparse_bytes)

    @property
    def dense_megabytes(self) -> float | None:
        """The size of the plain file in units of 2^20 bytes."""
        return self._megabytes(self.dense_bytes)

    def _megabytes(self, size: int | None) -> float | None:
        size = self.weight_bytes * self.parameters if size is None and self.parameters is not None else size
        return None if size is None else size / 2**20

    def compression(self, base: Cost) -> dict[str, float | None]:
        """Return how many times smaller than `base`: the pruned matrices, the model, the file."""
        kept = None if self.weights is None or self.zeros is None else self.weights - self.zeros
        rest = None if self.parameters is None else self.parameters - (self.all_zeros or 0)
        return {
            "matrices": _ratio(self.weights, kept),
            "model": _ratio(base.parameters, rest),
            "file": _ratio(self.dense_bytes, self.sparse_bytes),
        }


def _ratio(before: float | None, after: float | None) -> float | None:
    return before / after if before is not None and after else None


@dataclass(frozen=True, eq=False)
class SplitPredictions:
    """All predictions on one split: `values[method, phase]` is [trials, levels, n]."""

    truth: np.ndarray | None  # [n]; None for language, where predictions are losses
    removed: dict[Key, tuple[float, ...]]
    values: dict[Key, np.ndarray]


@dataclass(frozen=True, eq=False)
class Results:
    """What one experiment on one model measured. Curves hold scores: higher is better for every metric."""

    model: str
    metric: str
    units: int  # heads, neurons or weights that can be removed
    curves: dict[Key, Curve] = field(default_factory=dict)  # also of the base, if it was trained too
    target: str = "heads"
    task: str = ""
    layers: tuple[int, ...] = ()  # units per layer; empty if unknown, and for weights
    uses: int = 1  # how often the model applies each unit (ALBERT: 12)
    also: tuple[str, ...] = ()  # what is pruned besides the blocks
    orders: dict[str, list[Unit]] = field(default_factory=dict)  # by method; of random ones, the first trial
    costs: dict[Key, dict[float, Cost]] = field(default_factory=dict)
    details: dict[Key, dict[float, dict[str, Any]]] = field(default_factory=dict)  # schedule, seconds, seed
    predictions: dict[str, SplitPredictions] = field(default_factory=dict)  # by split
    test: dict[Key, dict[float, tuple[float, ...]]] = field(default_factory=dict)  # one score per trial
    scores: dict[str, np.ndarray] = field(default_factory=dict)  # by criterion or method, [layers, units]
    pooling: dict[Unit, dict[str, np.ndarray]] = field(default_factory=dict)  # cut unit -> role -> change
    seconds: dict[str, float] = field(default_factory=dict)  # spent on scoring, by method
    examples: dict[str, int] = field(default_factory=dict)  # by split
    training: Mapping[str, Any] | None = None
    tolerance: Tolerance | None = None
    majority: float | None = None  # accuracy of predicting the most frequent class
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # by method
    notes: tuple[str, ...] = ()
    source: str = ""  # the name of the folder it was read from
    record: Mapping[str, Any] = field(default_factory=dict)  # what run.json says of how it was made
    tokens: Mapping[str, Any] | None = None  # texts, and how long each token is kept

    @cached_property
    def keys(self) -> list[Key]:
        """Method and phase of every curve, without the base, random methods last."""
        own = [key for key in self.curves if key[0] != BASE]
        return sorted(own, key=lambda key: bool(self.curves[key].trials))

    @property
    def methods(self) -> list[str]:
        """The methods, random ones last."""
        return list(dict.fromkeys(method for method, _ in self.keys))

    @property
    def phases(self) -> list[str]:
        """The phases that were measured, in their order."""
        return [phase for phase in PHASES if any(p == phase for _, p in self.keys)]

    @cached_property
    def levels(self) -> list[float]:
        """Every fraction that some method was measured at, without 0."""
        return sorted({x for key in self.keys for x in self.curves[key].removed if x})

    @property
    def lead(self) -> str | None:
        """The method that the others are compared with: the first that is not random."""
        return next((method for method, phase in self.keys if not self.curves[method, phase].trials), None)

    @property
    def random(self) -> str | None:
        """The random method that the others are compared with: the one with most trials."""
        found = [key for key in self.keys if self.curves[key].trials]
        return max(found, key=lambda key: len(self.curves[key].trials), default=("", None))[0] or None

    @property
    def base(self) -> float:
        """The score of the unpruned model, with which every curve starts."""
        return next(iter(self.curves.values())).base

    @property
    def steps(self) -> dict[str, int | str]:
        """Units between two scorings of methods that score again, where that is not one."""
        again = {label: s.get("step") or 1 for label, s in self.settings.items() if s.get("rescore")}
        return {label: step if step == "auto" else int(step) for label, step in again.items() if step != 1}

    @property
    def counted(self) -> bool:
        """Whether removals are shown as counts of units (36 of 72) and not as percentages."""
        return self.target != "weights"

    def curve(self, method: str, phase: str = ONE_SHOT) -> Curve:
        """Return the curve of a method; of a random method, the mean over its trials."""
        if (method, phase) not in self.curves:
            known = [f"{m} {p}" for m, p in self.keys]
            raise UnknownNameError("curve", f"{method} {phase}", known, parameter="method")
        return self.curves[method, phase]

    def first_trial(self, method: str) -> Curve:
        """Return the curve of a method, or of its first trial if it is random."""
        return self.curve(method).trial(0)

    def chosen(self, method: str, phase: str = ONE_SHOT, tolerance: Tolerance = 0.01) -> float:
        """Return the fraction that may be removed within a tolerance of the base."""
        return self.curve(method, phase).within(tolerance)

    def cost(self, key: Key, removed: float) -> Cost:
        """Return the cost at one level, all None if it was not counted."""
        found = self.costs.get(key, {}).get(removed)
        return found or (self.costs.get(BASE_KEY, {}).get(0.0) if not removed else None) or Cost()

    def count(self, removed: float) -> int:
        """Return how many units a fraction is."""
        return round(removed * self.units)

    def show(self, score: float) -> float:
        """Return the value of the metric that a score stands for: a perplexity, not minus its logarithm."""
        return metrics.load(self.metric).value(score)


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
