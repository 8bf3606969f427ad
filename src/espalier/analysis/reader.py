"""A run folder read back: rows as they were flushed, the last of them perhaps torn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import EspalierError
from ..evaluation.metrics import guessing
from ..io.json_file import read_json
from ..io.rows import read_rows
from . import grids
from .curves import Curve, Trials
from .results import LOWER_IS_BETTER, Answers, Cost, Results, Unit

VERSION = 1
DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"
CLASS_OF = np.full(256, -1, dtype=np.int16)
CLASS_OF[np.frombuffer(DIGITS, dtype=np.uint8)] = range(len(DIGITS))


@dataclass(frozen=True)
class _Head:
    model: str
    metric: str
    kind: str
    layers: tuple[int, ...]
    uses: int
    strategies: list[str]
    truths: dict[str, np.ndarray]  # by part
    notes: list[str]
    task: str
    examples: dict[str, int]  # by part
    steps: dict[str, int | str]  # by strategy


@dataclass(frozen=True)
class _Row:
    line: int
    strategy: str
    trial: int | None
    k: int
    split: str
    value: float
    raw: Mapping[str, Any]


_Table = dict[tuple[str, int | None], dict[int, _Row]]  # (strategy, trial) -> level -> row


def run(folder: str | Path) -> Results:
    """All of a run folder."""
    place = Path(folder)
    head = _head(place / "run.json")
    layers, notes = head.layers, list(head.notes)
    path = place / "rows.jsonl"
    rows = [_row(path, line, raw, head) for line, raw in enumerate(read_rows(path), 1)]
    tables = {split: _table(rows, split, head.strategies) for split in ("validation", "test")}
    validation = tables["validation"]
    base = validation.pop(("base", None), {}).get(0)
    if base is None:
        raise EspalierError(
            f"{path} has no row of the unpruned model yet (strategy 'base', k 0, split 'validation')"
        )
    strategies = list(dict.fromkeys(label for label, _ in validation))
    trials: dict[str, Trials] = {}
    for label in strategies:
        found = {trial: t for (name, trial), t in validation.items() if name == label}
        if None in found:
            continue
        done, dropped = _whole(found)
        if dropped:
            notes.append(f"{label}: unfinished trials left out: {dropped}")
        for trial in set(found) - set(done):
            del validation[label, trial]
        levels = (0, *(k for k in sorted(next(iter(done.values()))) if k))
        values = ((base.value, *(t[k].value for k in levels[1:])) for _, t in sorted(done.items()))
        trials[label] = Trials(levels, tuple(values))
    single = {label: t for (label, trial), t in validation.items() if trial is None}
    said = guessing(head.truths.get("validation"), base.raw["metrics"].get("accuracy"))
    notes += [said] if said else []
    return Results(
        model=head.model,
        metric=head.metric,
        units=sum(layers),
        layers=layers,
        uses=head.uses,
        target=head.kind,
        curves={label: _curve(base, t) for label, t in single.items()},
        trials=trials,
        orders={label: order for label, t in single.items() if (order := _order(path, t, layers))},
        costs={"base": {0: _cost(base)}, **_costs(validation)},
        answers={
            split: kept
            for split, table in tables.items()
            if (kept := _collected(path, table, base, head.truths.get(split), split))
        },
        test=_test_values(tables["test"]),
        scores=grids.scores(place / "scores.jsonl", layers),
        pooling=grids.pooling(place / "pooling.json", layers),
        seconds=_seconds(validation),
        notes=tuple(notes),
        steps=head.steps,
        task=head.task,
        examples=head.examples,
        source=place.resolve().name,
    )


def _head(path: Path) -> _Head:
    raw = read_json(path)
    if raw.get("study"):
        raise EspalierError(
            f"{path.parent} is a {raw['study']} study: no units were removed one after the other in it. "
            f"Type: espalier report {path.parent}"
        )
    try:
        version = int(raw["version"])
        uses = {int(site.get("uses", 1)) for site in raw["sites"]}
        parts = (raw.get("parts") or {}).items()
        head = _Head(
            model=str(raw["model"]),
            metric=str(raw["metric"]),
            kind=str(raw.get("kind") or "units"),
            layers=tuple(int(site["units"]) for site in raw["sites"]),
            uses=uses.pop() if len(uses) == 1 else 1,
            strategies=[str(label) for label in raw.get("strategies", ())],
            truths={part: decoded(p["labels"]) for part, p in parts if p.get("labels") is not None},
            notes=[str(note) for note in raw.get("notes", ())],
            task=str(raw.get("task") or ""),
            examples={part: int(p["n"]) for part, p in parts if p.get("n")},
            steps=_steps(raw.get("settings") or {}),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise EspalierError(
            f"{path} is not the head of a run ({type(error).__name__}: {error}): "
            "it has version, model, metric, sites and strategies"
        ) from None
    if not 1 <= version <= VERSION:
        raise EspalierError(
            f"{path} has version {version}; this espalier reads up to {VERSION}. "
            "Type: pip install --upgrade espalier"
        )
    return head


def _steps(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, int | str]:
    """After how many units a strategy scores again, where it does and that is more than one."""
    again = {label: s.get("step") or 1 for label, s in settings.items() if s.get("rescore")}
    return {label: step if step == "auto" else int(step) for label, step in again.items() if step != 1}


def _row(path: Path, line: int, raw: dict[str, Any], head: _Head) -> _Row:
    try:
        trial = None if raw.get("trial") is None else int(raw["trial"])
        value, k = value_of(raw["metrics"], head.metric), int(raw["k"])
        if not 0 <= k <= sum(head.layers):
            raise ValueError(f"{k} units removed of {sum(head.layers)}")
        return _Row(line, str(raw["strategy"]), trial, k, raw["split"], value, raw)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise EspalierError(
            f"{path}, line {line} is not a row of a run: {what}. A row has strategy, k, split and metrics "
            f"with {head.metric!r}"
        ) from None


def value_of(metrics: Mapping[str, float], metric: str) -> float:
    value = float(metrics[metric])
    if metric in LOWER_IS_BETTER:
        # exp overflows long before a mean loss does
        value = -float(metrics["loss"]) if math.isinf(value) else -math.log(value)
    if not math.isfinite(value):
        raise ValueError(f"{metric} is {metrics[metric]}")
    return value


def _table(rows: Sequence[_Row], split: str, wanted: Sequence[str]) -> _Table:
    """By strategy and trial, in the order asked for; a level measured twice counts once, as last seen."""
    out: _Table = {}
    for row in rows:
        if row.split == split:
            out.setdefault((row.strategy, row.trial), {})[row.k] = row
    place = {label: i for i, label in enumerate(wanted)}
    return dict(sorted(out.items(), key=lambda item: place.get(item[0][0], len(place))))


def _whole(trials: Mapping[int | None, dict[int, _Row]]) -> tuple[dict[Any, dict[int, _Row]], int]:
    """The trials measured at every level that the fullest was, and how many are not."""
    levels = max((set(rows) for rows in trials.values()), key=len)
    whole = {trial: rows for trial, rows in trials.items() if set(rows) == levels}
    return whole, len(trials) - len(whole)


def _curve(base: _Row, rows: Mapping[int, _Row]) -> Curve:
    levels = [k for k in sorted(rows) if k]
    return Curve((0, *levels), (base.value, *(rows[k].value for k in levels)))


def _order(path: Path, rows: Mapping[int, _Row], layers: Sequence[int]) -> list[Unit]:
    """The units in the order they were removed, checked against the levels and the model's shape."""
    order: list[Unit] = []
    for k in sorted(rows):
        cut = rows[k].raw.get("cut")
        if cut is None:
            return []
        order += [(int(layer), int(head)) for layer, head in cut]
        if len(order) != k or len(set(order)) != k:
            raise EspalierError(
                f"{path}, line {rows[k].line}: {k} units are said to be gone, but up to here "
                f"{len(set(order))} different ones were named in cut"
            )
    for layer, head in order:
        if not (0 <= layer < len(layers) and 0 <= head < layers[layer]):
            raise EspalierError(f"{path}: there is no unit {head} in layer {layer} of this model")
    return order


def _cost(row: _Row) -> Cost:
    numbers = (row.raw.get("parameters"), row.raw.get("macs"))
    return Cost(*(None if n is None else int(n) for n in numbers))


def _costs(table: _Table) -> dict[str, dict[int, Cost]]:
    out: dict[str, dict[int, Cost]] = {}
    for (label, _), rows in table.items():
        for k, row in rows.items():
            out.setdefault(label, {}).setdefault(k, _cost(row))
    return out


def _seconds(table: _Table) -> dict[str, float]:
    out: dict[str, float] = {}
    for (label, _), rows in table.items():
        spent = sum(float((r.raw.get("seconds") or {}).get("scoring", 0)) for r in rows.values())
        out[label] = out.get(label, 0.0) + spent
    return out


def _test_values(table: _Table) -> dict[str, dict[int, tuple[float, ...]]]:
    out: dict[str, dict[int, tuple[float, ...]]] = {}
    for (label, _), rows in table.items():
        for k, row in rows.items():
            at = out.setdefault(label, {})
            at[k] = (*at.get(k, ()), row.value)
    return out


def decoded(raw: str | Sequence[float]) -> np.ndarray:
    """Predictions and labels as they stand in the files: base-36 digits, or a list of numbers."""
    if not isinstance(raw, str):
        return np.asarray(raw, dtype=np.float64)
    classes = CLASS_OF[np.frombuffer(raw.encode(), dtype=np.uint8)]
    if (classes < 0).any():
        raise ValueError("a class is written as one of 0-9 and a-z")
    return classes


def _predictions(path: Path, row: _Row) -> np.ndarray:
    try:
        return decoded(row.raw["predictions"])
    except (TypeError, ValueError) as error:
        raise EspalierError(f"{path}, line {row.line}: broken predictions: {error}") from None


def _collected(
    path: Path, table: _Table, base: _Row | None, truth: np.ndarray | None, split: str
) -> Answers | None:
    """All answers on one part, or None where they were not kept (an interval needs every one)."""
    if split == "test":
        base = table.get(("base", None), {}).get(0)
    if base is None or base.raw.get("predictions") is None:
        return None
    n = len(base.raw["predictions"])
    levels: dict[str, tuple[int, ...]] = {}
    found: dict[str, list[np.ndarray]] = {}
    single = {label for label, trial in table if trial is None}
    for (label, _), rows in table.items():
        curve = {0: base, **{k: rows[k] for k in sorted(rows) if k}}
        if any(row.raw.get("predictions") is None for row in curve.values()):
            continue
        for row in curve.values():
            if len(row.raw["predictions"]) != n or (truth is not None and len(truth) != n):
                raise EspalierError(
                    f"{path}, line {row.line}: {len(row.raw['predictions'])} predictions; the unpruned "
                    f"model has {n} and there are {n if truth is None else len(truth)} labels"
                )
        if levels.setdefault(label, tuple(curve)) == tuple(curve):
            every = [_predictions(path, row) for row in curve.values()]
            found.setdefault(label, []).append(np.stack(every))
    guesses = {label: g[0] if label in single else np.stack(g) for label, g in found.items()}
    return Answers(truth, levels, guesses)
