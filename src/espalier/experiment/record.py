"""The rows of a run, found by method, phase, trial, level and split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..analysis.curves import BASE, ONE_SHOT, Curve, finished
from ..analysis.reader import read_run
from ..analysis.record import check_rows, read_record
from ..core.errors import FormatError, UnsupportedError
from ..core.mask import Mask
from ..core.terminal import log
from ..evaluation.metrics import Metric
from ..io.paths import ROWS
from ..io.rows import Row, Rows
from ..selection.pace import Unit
from ..selection.scopes import GLOBAL
from .method import AUTO, Method
from .session import VALIDATION, Session
from .walk import mask_without

MEASURED = ("metrics", "predictions", "n", "cost")
Key = tuple[str, str, int | None, float, str]


class RunRows:
    """Rows on disk, and what was measured of each set of removed units, whatever method removed them."""

    def __init__(self, folder: Path, session: Session, *, write: bool):
        self.rows, self.units = Rows(folder / ROWS, write=write), session.units
        checked = check_rows(folder / ROWS, self.rows.rows, read_record(folder)) if self.rows.rows else []
        self.known = {row.key: raw for row, raw in zip(checked, self.rows)}
        self.measured: dict[tuple[str, frozenset[Unit]], Row] = {}
        orders: dict[Any, list[Unit]] = {}
        for row, raw in zip(checked, self.rows) if session.target != "weights" else ():
            if row.walked and row.order is None:
                raise FormatError(
                    f"{folder / ROWS}, line {row.line} has no `order`: it cannot resume", folder
                )
            if row.phase == ONE_SHOT:
                order = orders.setdefault((row.method, row.trial), [])
                order += row.units
                removed = frozenset(order[: round(row.removed * self.units)])
                self.measured[row.split, removed] = {name: raw.get(name) for name in MEASURED}

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def has(self, *key: Any) -> bool:
        """Whether there is a row of this method, phase, trial, level and split."""
        return key in self.known

    def add(self, row: Row) -> None:
        """Append a row and wait until it is on disk."""
        self.rows.add(row)
        self.known[row["method"], row["phase"], row["trial"], row["removed"], row["split"]] = row

    def curve(self, label: str, metric: Metric) -> Curve:
        """Return the one-shot curve of a method on validation, by its finished trials."""
        runs: dict[int | None, dict[float, float]] = {}
        for row in self.rows:
            if (row["method"], row["phase"], row["split"]) == (label, ONE_SHOT, VALIDATION):
                runs.setdefault(row["trial"], {})[row["removed"]] = metric.score_in(row["metrics"])
        base = self.known[BASE, ONE_SHOT, None, 0.0, VALIDATION]
        return Curve.of_runs(metric.score_in(base["metrics"]), finished(runs), metric.log)

    def walked(self, label: str, trial: int | None) -> list[Row]:
        """Return the one-shot rows of a method on validation, in their order."""
        return [row for row in self.rows if _walked(row, label, trial)]


def warn_about_passed(rows: Sequence[Row], method: Method, levels: Sequence[int], units: int) -> None:
    """Warn about levels that a run has passed without measuring them: it only moves on from where it is."""
    if method.step == AUTO or method.scope != GLOBAL:  # its own steps and rounding decide the levels
        return
    done, measured = len(order_of(rows)), {round(row["removed"] * units) for row in rows}
    passed = [k for k in levels if k <= done and k not in measured]
    if passed:
        log.warning(
            "%s has removed %d units already: %d levels on the way, the first at %d units, are not measured. "
            "Choose another folder to measure them",
            *(method.label, done, len(passed), passed[0]),
        )


def _walked(row: Mapping[str, Any], label: str, trial: int | None) -> bool:
    return (row["method"], row["trial"], row["phase"], row["split"]) == (label, trial, ONE_SHOT, VALIDATION)


def order_of(rows: Iterable[Row]) -> list[Unit]:
    """Return the units that rows of one walk have removed, in their order."""
    return [(layer, unit) for row in rows for layer, unit in row["order"] or ()]


def mask_at(session: Session, folder: Path, label: str, removed: float) -> Mask:
    """Return the mask of a method (of its first trial) with a fraction of the units removed, from a run."""
    order, k = read_run(folder).orders.get(label, []), round(removed * session.units)
    if k > len(order):
        raise UnsupportedError(f"{label} removed {len(order)} units in {folder}, not {k}")
    return mask_without(session.sites, order[:k])
