"""Read run folders of versions 1 and 2: every complete row, checked in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..core.errors import DataError, FormatError, InvalidValueError, UnknownNameError
from ..evaluation import metrics
from ..evaluation.predictions import unpack
from ..io.paths import POOLING, ROWS, RUN, SCORES, TOKENS
from .curves import BASE, ONE_SHOT, Curve, Tolerance, finished, in_order, parse_tolerance
from .picture import read_tokens
from .record import MeasuredRow, RunRecord, read_measured, read_record
from .results import BASE_KEY, Cost, Key, Results, SplitPredictions, Unit, read_pooling, read_scores

Value = TypeVar("Value")


@dataclass(frozen=True)
class _Row:
    """A measured row with its score and its predictions as numbers."""

    raw: MeasuredRow
    score: float
    predictions: np.ndarray | None

    @property
    def removed(self) -> float:
        return self.raw.removed


_Runs = dict[int | None, dict[float, _Row]]  # trial -> fraction removed -> row
_Table = dict[Key, _Runs]


def read_run(folder: str | Path) -> Results:
    """Read a run folder; of a run that was stopped, as far as it got."""
    place = Path(folder)
    run, path = read_record(place), place / ROWS
    metric = _load_metric(run, place)
    truths = {name: split.truth(place / RUN) for name, split in run.splits.items()}
    rows = [_convert(path, row, metric) for row in read_measured(place, run)]
    validation, test = (_group(rows, split, run.methods) for split in ("validation", "test"))
    if BASE_KEY not in validation:
        raise FormatError(f"{path} has no row of the unpruned model yet", path)
    base = validation[BASE_KEY][None][0.0]
    notes = [*run.notes, *_drop_unfinished(validation)]
    truth, accuracy = truths.get("validation"), base.raw.metrics.get("accuracy")
    notes += filter(None, [metrics.check_above_majority(truth, accuracy)])
    by_accuracy = metric.name == "accuracy" and truth is not None and len(truth)
    uses = {site.uses for site in run.sites}
    layers = run.layers if run.counted else ()
    return Results(
        model=run.model,
        metric=metric.name,
        units=sum(run.layers),
        curves={key: _curve(base, runs, metric.log) for key, runs in validation.items()},
        target=run.target,
        task=run.task,
        layers=layers,
        uses=uses.pop() if len(uses) == 1 else 1,
        also=tuple(run.also),
        orders=_orders(validation) if layers else {},
        costs={key: _at_levels(runs, partial(_cost, run.weight_bytes)) for key, runs in validation.items()},
        details={key: _at_levels(runs, _details) for key, runs in validation.items()},
        predictions={
            split: found
            for split, table in (("validation", validation), ("test", test))
            if (found := _predictions(path, table, truths.get(split)))
        },
        test={key: _test_scores(runs) for key, runs in test.items()},
        scores=read_scores(place / SCORES, layers) if layers else {},
        pooling=read_pooling(place / POOLING, layers) if layers else {},
        seconds=_scoring_seconds(validation),
        examples={name: split.n for name, split in run.splits.items() if split.n},
        training=run.training.model_dump() if run.training else None,
        tolerance=_tolerance(run, place),
        majority=metrics.majority_share(truth) if by_accuracy and truth is not None else None,
        settings={label: found.model_dump() for label, found in run.settings.items()},
        notes=tuple(notes),
        source=place.resolve().name,
        record=run.model_dump(exclude={"sites": True, "splits": {"__all__": {"labels"}}, "settings": True}),
        tokens=read_tokens(place / TOKENS),
    )


def _load_metric(run: RunRecord, folder: Path) -> metrics.Metric:
    try:
        return metrics.load(run.metric)
    except UnknownNameError as error:
        raise FormatError(f"{folder / RUN}: {error}", folder / RUN) from None


def _tolerance(run: RunRecord, folder: Path) -> Tolerance | None:
    """Return the tolerance of a run; runs of before could have 1, which allows any loss."""
    given = run.tolerance
    try:
        return given if given is None or given == 1 else parse_tolerance(given)
    except InvalidValueError as error:
        raise FormatError(f"{folder / RUN}: {error}", folder / RUN) from None


def _convert(path: Path, row: MeasuredRow, metric: metrics.Metric) -> _Row:
    """Return the row with what it measured as numbers."""
    try:
        return _Row(
            row, metric.score_in(row.metrics), None if row.predictions is None else unpack(row.predictions)
        )
    except (DataError, ValueError) as error:
        raise FormatError(f"{path}, line {row.line} is not a row of a run: {error}", path) from None


def _group(rows: Sequence[_Row], split: str, methods: Sequence[str]) -> _Table:
    """Group rows by curve, trial and level in the order of `methods`."""
    out: _Table = {}
    for row in rows:
        raw = row.raw
        if raw.split == split:
            out.setdefault((raw.method, raw.phase), {}).setdefault(raw.trial, {})[raw.removed] = row
    place = {label: i for i, label in enumerate([BASE, *methods])}
    return dict(sorted(out.items(), key=lambda item: place.get(item[0][0], len(place))))


def _drop_unfinished(table: _Table) -> list[str]:
    """Remove trials that were not measured at every level; return a note about each method."""
    notes = []
    for (method, phase), runs in table.items():
        left = finished(runs)
        if len(left) < len(runs):
            notes.append(f"{method}: unfinished trials left out: {len(runs) - len(left)}")
            table[method, phase] = left
    return notes


def _from_base(base: _Row, runs: _Runs) -> list[list[_Row]]:
    """Return the rows of each trial in the order of their levels, after that of the unpruned model."""
    return [[row for _, row in sorted({0.0: base, **rows}.items())] for rows in in_order(runs)]


def _curve(base: _Row, runs: _Runs, log: bool) -> Curve:
    scores = {trial: {removed: row.score for removed, row in rows.items()} for trial, rows in runs.items()}
    return Curve.of_runs(base.score, scores, log)


def _orders(table: _Table) -> dict[str, list[Unit]]:
    """Return the units of each method in the order of removal, of random ones in the first trial."""
    out: dict[str, list[Unit]] = {}
    for (method, phase), runs in table.items():
        rows = in_order(runs)[0]
        order = [unit for removed in sorted(rows) for unit in rows[removed].raw.units]
        if order and phase == ONE_SHOT:
            out[method] = order
    return out


def _at_levels(runs: _Runs, read: Callable[[MeasuredRow], Value]) -> dict[float, Value]:
    """Return what `read` gives for one row of each level."""
    return {removed: read(row.raw) for trial in reversed(list(runs)) for removed, row in runs[trial].items()}


def _cost(weight_bytes: int, row: MeasuredRow) -> Cost:
    found: dict[str, Any] = dict(row.cost or {})
    size = found.get("bytes") or {}
    each = weight_bytes if row.phase == ONE_SHOT else 4  # what was trained is saved in float32
    counts: Any = {name: found.get(name) for name in ("parameters", "macs", "zeros", "weights", "all_zeros")}
    stored: Any = dict(dense_bytes=size.get("dense"), sparse_bytes=size.get("sparse"), weight_bytes=each)
    return Cost(**counts, **stored, latency=found.get("latency"))


def _details(row: MeasuredRow) -> dict[str, Any]:
    names = {"schedule": row.schedule, "mask_interval": row.mask_interval, "seed": row.seed}
    return {**names, "examples": row.n, "seconds": sum((row.seconds or {}).values())}


def _scoring_seconds(table: _Table) -> dict[str, float]:
    out: dict[str, float] = {}
    for (method, phase), runs in table.items():
        if method != BASE and phase == ONE_SHOT:
            rows = [row.raw.seconds or {} for one in runs.values() for row in one.values()]
            out[method] = sum(seconds.get("scoring", 0.0) for seconds in rows)
    return out


def _test_scores(runs: _Runs) -> dict[float, tuple[float, ...]]:
    levels = sorted({removed for rows in runs.values() for removed in rows})
    return {x: tuple(rows[x].score for rows in in_order(runs) if x in rows) for x in levels}


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
                where = f"{path}, line {wrong[0].raw.line}"
                raise FormatError(f"{where}: the predictions are not those of {n} examples", path)
            levels = tuple(row.removed for row in rows)
            if len(kept) == len(rows) and removed.setdefault(key, levels) == levels:
                found.append(np.stack(kept))
        if found:
            values[key] = np.stack(found)
    return SplitPredictions(truth, removed, values)
