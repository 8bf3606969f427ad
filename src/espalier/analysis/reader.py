"""Read run folders of versions 1 and 2: every complete row, checked in one place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..core.errors import FormatError
from ..evaluation import metrics
from ..evaluation.predictions import unpack
from ..io.files import read_json
from ..io.paths import POOLING, ROWS, RUN, SCORES
from ..io.rows import read_rows
from .curves import BASE, ONE_SHOT, PHASES, Curve
from .results import BASE_KEY, Cost, Key, Results, SplitPredictions, Unit, read_pooling, read_scores

VERSION = 2
RUN_NAMES = {"strategies": "methods", "kind": "target", "parts": "splits"}
RUN_NAMES |= {"within": "tolerance", "length": "max_length"}
TRAINING_NAMES = {"batch": "batch_size", "rate": "lr", "refresh": "mask_interval"}
ROW_NAMES = {"strategy": "method", "way": "phase", "cut": "order", "refresh": "mask_interval"}
COSTS = ("units", "parameters", "macs", "zeros", "weights", "all_zeros", "bytes")
Value = TypeVar("Value")


@dataclass(frozen=True)
class _Row:
    line: int
    key: Key
    trial: int | None
    removed: float
    split: str
    score: float
    predictions: np.ndarray | None
    raw: Mapping[str, Any]


_Runs = dict[int | None, dict[float, _Row]]  # trial -> fraction removed -> row
_Table = dict[Key, _Runs]


@dataclass(frozen=True)
class _Run:
    """The content of run.json that rows are checked against."""

    raw: Mapping[str, Any]
    metric: metrics.Metric
    layers: tuple[int, ...]
    truths: dict[str, np.ndarray]  # by split

    @classmethod
    def read(cls, path: Path) -> _Run:
        raw = _upgrade_run(read_json(path), path)
        try:
            splits = raw.setdefault("splits", {}).items()
            truths = {name: unpack(s["labels"]) for name, s in splits if s.get("labels") is not None}
            layers = tuple(int(site["units"]) for site in raw["sites"])
            return cls({**raw, "model": str(raw["model"])}, metrics.load(raw["metric"]), layers, truths)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            found = f"no model, metric, sites or splits of a run ({type(error).__name__}: {error})"
            raise FormatError(f"{path} has {found}", path) from None


def read_run(folder: str | Path) -> Results:
    """Read a run folder; of a run that was stopped, as far as it got."""
    place = Path(folder)
    run = _Run.read(place / RUN)
    path, target = place / ROWS, str(run.raw.get("target") or "units")
    rows = [_check_row(path, line, raw, run) for line, raw in enumerate(read_rows(path), 1)]
    validation, test = (_group(rows, split, run.raw.get("methods", ())) for split in ("validation", "test"))
    if BASE_KEY not in validation:
        raise FormatError(f"{path} has no row of the unpruned model yet", path)
    base = validation[BASE_KEY][None][0.0]
    notes = [str(note) for note in run.raw.get("notes", ())] + _drop_unfinished(validation)
    truth, accuracy = run.truths.get("validation"), base.raw["metrics"].get("accuracy")
    notes += filter(None, [metrics.check_above_majority(truth, accuracy)])
    by_accuracy = run.metric.name == "accuracy" and truth is not None and len(truth)
    uses = {int(site.get("uses", 1)) for site in run.raw["sites"]}
    layers = () if target == "weights" else run.layers
    tolerance = run.raw.get("tolerance")
    return Results(
        model=run.raw["model"],
        metric=run.metric.name,
        units=sum(run.layers),
        curves={key: _curve(base, runs) for key, runs in validation.items()},
        target=target,
        task=str(run.raw.get("task") or ""),
        layers=layers,
        uses=uses.pop() if len(uses) == 1 else 1,
        also=tuple(run.raw.get("also") or ()),
        orders=_orders(path, validation, run.layers),
        costs={key: _at_levels(runs, _cost) for key, runs in validation.items()},
        details={key: _at_levels(runs, _details) for key, runs in validation.items()},
        predictions={
            split: found
            for split, table in (("validation", validation), ("test", test))
            if (found := _predictions(path, table, run.truths.get(split)))
        },
        test={key: _test_scores(runs) for key, runs in test.items()},
        scores=read_scores(place / SCORES, layers) if layers else {},
        pooling=read_pooling(place / POOLING, layers) if layers else {},
        seconds=_scoring_seconds(validation),
        examples={name: int(s["n"]) for name, s in run.raw["splits"].items() if s.get("n")},
        training=run.raw.get("training"),
        tolerance=None if tolerance is None else float(tolerance),
        majority=metrics.majority_share(truth) if by_accuracy and truth is not None else None,
        settings=dict(run.raw.get("settings") or {}),
        notes=tuple(notes),
        source=place.resolve().name,
    )


def _check_row(path: Path, line: int, raw: dict[str, Any], run: _Run) -> _Row:
    """Return the row in the form of the newest version; refuse one that cannot be right."""
    _check_version({**raw, "version": raw.get("version", 1)}, path)
    try:
        row = _upgrade_row(raw, sum(run.layers))
        removed, phase = float(row["removed"]), str(row["phase"])
        trial = None if row.get("trial") is None else int(row["trial"])
        if not 0 <= removed <= 1:
            raise ValueError(f"{removed:g} removed is not a fraction from 0 to 1")
        if phase not in PHASES:
            raise ValueError(f"phase {phase!r} is none of {', '.join(PHASES)}")
        packed = row.get("predictions")
        predictions = None if packed is None else unpack(packed)
        found, metric = row["metrics"], run.metric
        value = float(found[metric.name])  # exp overflows long before a mean loss does
        score = -float(found["loss"]) if metric.log and math.isinf(value) else metric.score(value)
        if not math.isfinite(score):
            raise ValueError(f"{metric.name} is {value}")
        return _Row(line, (str(row["method"]), phase), trial, removed, row["split"], score, predictions, row)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        seen = f"no {error}" if isinstance(error, KeyError) else str(error)
        wanted = f"a row has method, phase, removed, split and metrics with {run.metric.name!r}"
        raise FormatError(f"{path}, line {line} is not a row of a run: {seen}; {wanted}", path) from None


def _group(rows: Sequence[_Row], split: str, methods: Sequence[str]) -> _Table:
    """Group rows by curve, trial and level in the order of `methods`; of a level measured twice, the last."""
    out: _Table = {}
    for row in rows:
        if row.split == split:
            out.setdefault(row.key, {}).setdefault(row.trial, {})[row.removed] = row
    place = {label: i for i, label in enumerate([BASE, *methods])}
    return dict(sorted(out.items(), key=lambda item: place.get(item[0][0], len(place))))


def _drop_unfinished(table: _Table) -> list[str]:
    """Remove trials that were not measured at every level; return a note about each method."""
    notes = []
    for (method, phase), runs in table.items():
        levels = max((set(rows) for rows in runs.values()), key=len)
        finished = {trial: rows for trial, rows in runs.items() if set(rows) == levels}
        if len(finished) < len(runs):
            notes.append(f"{method}: unfinished trials left out: {len(runs) - len(finished)}")
            table[method, phase] = finished
    return notes


def _from_base(base: _Row, runs: _Runs) -> list[list[_Row]]:
    """Return the rows of each trial in the order of their levels, after that of the unpruned model."""
    return [[row for _, row in sorted({0.0: base, **rows}.items())] for rows in _in_order(runs)]


def _curve(base: _Row, runs: _Runs) -> Curve:
    trials = _from_base(base, runs)
    levels, scores = [row.removed for row in trials[0]], [tuple(row.score for row in rows) for rows in trials]
    return Curve(tuple(levels), scores[0]) if None in runs else Curve.of_trials(levels, scores)


def _in_order(runs: _Runs) -> list[dict[float, _Row]]:
    """Return the rows of each trial; those without a trial number replace all others."""
    return [runs[None]] if None in runs else [runs[trial] for trial in sorted(runs, key=lambda t: t or 0)]


def _orders(path: Path, table: _Table, layers: Sequence[int]) -> dict[str, list[Unit]]:
    """Return the units of each method in the order of removal, checked against the levels and the model."""
    out: dict[str, list[Unit]] = {}
    for (method, _), runs in table.items():
        rows, order = _in_order(runs)[0], list[Unit]()
        for removed in sorted(rows):
            new = rows[removed].raw.get("order")
            if new is None:
                order = []
                break
            order += [(int(layer), int(unit)) for layer, unit in new]
            valid = {(i, j) for i, j in order if 0 <= i < len(layers) and 0 <= j < layers[i]}
            count = round(removed * sum(layers))
            if not len(order) == len(valid) == count:
                where = f"{path}, line {rows[removed].line}"
                raise FormatError(f"{where}: {count} units are removed, but `order` names {len(valid)}", path)
        if order:
            out.setdefault(method, order)
    return out


def _at_levels(runs: _Runs, read: Callable[[Mapping[str, Any]], Value]) -> dict[float, Value]:
    """Return what `read` gives for one row of each level."""
    return {removed: read(row.raw) for trial in reversed(list(runs)) for removed, row in runs[trial].items()}


def _cost(raw: Mapping[str, Any]) -> Cost:
    found = raw.get("cost") or {}
    size = found.get("bytes") or {}
    counts = {name: found.get(name) for name in ("parameters", "macs", "zeros", "weights", "all_zeros")}
    return Cost(**counts, dense_bytes=size.get("dense"), sparse_bytes=size.get("sparse"))


def _details(raw: Mapping[str, Any]) -> dict[str, Any]:
    names = {name: raw.get(name) for name in ("schedule", "mask_interval", "seed")}
    return {**names, "examples": raw.get("n"), "seconds": sum((raw.get("seconds") or {}).values())}


def _scoring_seconds(table: _Table) -> dict[str, float]:
    out: dict[str, float] = {}
    for (method, phase), runs in table.items():
        if method != BASE and phase == ONE_SHOT:
            rows = [row.raw.get("seconds") or {} for one in runs.values() for row in one.values()]
            out[method] = sum(float(seconds.get("scoring", 0)) for seconds in rows)
    return out


def _test_scores(runs: _Runs) -> dict[float, tuple[float, ...]]:
    levels = sorted({removed for rows in runs.values() for removed in rows})
    return {x: tuple(rows[x].score for rows in _in_order(runs) if x in rows) for x in levels}


def _predictions(path: Path, table: _Table, truth: np.ndarray | None) -> SplitPredictions | None:
    """Return all predictions on one split, or None if they were not kept."""
    base = table.get(BASE_KEY, {}).get(None, {}).get(0.0)
    if base is None or base.predictions is None:
        return None
    n = len(base.predictions) if truth is None else len(truth)
    removed: dict[Key, tuple[float, ...]] = {}
    values: dict[Key, np.ndarray] = {}
    for key, runs in table.items():
        found = []
        for rows in _from_base(base, runs):
            kept = [row.predictions for row in rows if row.predictions is not None]
            wrong = [row for row in rows if row.predictions is not None and len(row.predictions) != n]
            if wrong:
                where = f"{path}, line {wrong[0].line}"
                raise FormatError(f"{where}: the predictions are not those of {n} examples", path)
            levels = tuple(row.removed for row in rows)
            if len(kept) == len(rows) and removed.setdefault(key, levels) == levels:
                found.append(np.stack(kept))
        if found:
            values[key] = np.stack(found)
    return SplitPredictions(truth, removed, values)


def _check_version(raw: Mapping[str, Any], path: Path) -> None:
    """Refuse a run or a row of a newer version."""
    version = raw.get("version", VERSION)
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise FormatError(
            f"{path} has version {version!r}, this espalier reads up to {VERSION}: upgrade", path
        )


def _upgrade_run(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the content of run.json as version 2 has it."""
    _check_version(raw, path)
    if raw.get("version") == VERSION:
        return raw
    out = _rename(raw, RUN_NAMES)
    if out.get("training"):
        out["training"] = _rename(out["training"], TRAINING_NAMES)
    return out


def _upgrade_row(raw: dict[str, Any], units: int) -> dict[str, Any]:
    """Return a row as version 2 has it."""
    if "strategy" not in raw:
        return raw
    out = {"phase": ONE_SHOT, "trial": None, "order": None, **_rename(raw, ROW_NAMES)}
    out["removed"] = raw["level"] if "level" in raw else int(raw["k"]) / units
    out["cost"] = {name: raw[name] for name in COSTS if name in raw}
    return out


def _rename(raw: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in raw.items()}
