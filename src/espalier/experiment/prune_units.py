"""Prune heads or neurons to a fraction or a tolerance: the smaller model, and facts before and after."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..analysis.curves import BASE, ONE_SHOT
from ..analysis.reader import read_run
from ..core import distributed
from ..core.errors import InvalidValueError, UnsupportedError
from ..core.log import log
from ..core.progress import OnProgress, ignore
from ..evaluation.latency import time_models
from ..io.files import read_json
from ..io.paths import ROWS, RUN
from ..io.rows import read_rows
from ..pruning.cut import cut
from ..storage.save import save
from .assessment import assess, weight_bytes
from .levels import removal
from .manifest import VERSION, check_folder, check_same_model, same_splits
from .method import AUTO, Method, check_learned
from .record import mask_at
from .runner import run_comparison
from .session import Session
from .walk import count_removed

MEASUREMENTS = 8  # on the way to a fraction, so that a killed run has something to resume from


def check_units(
    method: Method, remove: float | None, tolerance: float | None, run: Path | None, folder: Path | None
) -> None:
    """Raise for what cannot be done, before anything is loaded."""
    if (remove is None) == (tolerance is None):
        raise InvalidValueError("give either `remove`, a fraction, or `tolerance`", "remove")
    check_learned(method, False)
    if remove is not None:
        removal(method, remove)
    if run is not None:
        read_run(run).curve(method.label)
    elif folder is not None:
        check_folder(_own_run(folder))


def prune_units(
    session: Session,
    method: Method,
    *,
    remove: float | None = None,
    tolerance: float | None = None,
    folder: Path | None = None,
    run: Path | None = None,
    on_progress: OnProgress = ignore,
) -> tuple[Any, dict[str, Any]]:
    """Remove heads or neurons by one method and save what is left. Returns the model and facts about it.

    The order of removal is measured in `run`, or taken from it if it is a finished comparison.
    """
    fixed = next((site for site in session.sites if site.spec.uncuttable), None)
    if fixed is not None:
        raise UnsupportedError(f"{fixed.name} cannot be cut: {fixed.spec.uncuttable}")
    with _run_folder(run, folder) as (place, finished):
        if finished:
            check_same_model(session, place)
        else:
            _measure_order(session, method, place, remove, tolerance, on_progress)
        if distributed.leave_group():
            return None, {}
        if remove is not None:
            removed = count_removed(session.units, remove) / session.units
        else:
            removed = _within(place, method.label, tolerance or 0.0)
        mask = mask_at(session, place, method.label, removed)
        small = copy.deepcopy(session.model)
        if mask.kept < 1:
            cut(small, mask, report=False)
        rows = _known_rows(session, place, method.label, removed)
        about = read_json(place / RUN)
        facts = basic_facts(session, method, 1 - mask.kept)
        facts["before"] = assess(session, session.model, folder=session.folder, rows=rows[0.0])
        after = assess(session, small, rows=rows.get(removed))
        if folder is not None:
            origin = {
                **session.origin(),
                **_described(session, method, facts, after, about),
                "run": place.name,
            }
            with session.in_stored_dtype(small):
                save(small, folder, tokenizer=session.tokenizer, origin=origin)
        facts["after"] = after | {"bytes": weight_bytes(small, session.stored, folder)}
    before, now = time_models([session.model, small], session.test[len(session.test) // 2])
    facts |= {"speedup": before.best / now.best, "folder": folder and str(folder), "run": run and str(run)}
    return small, facts


def _own_run(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-run")


@contextmanager
def _run_folder(run: Path | None, folder: Path | None) -> Iterator[tuple[Path, bool]]:
    """Give the folder of the rows, and whether they are those of a finished comparison."""
    if run is not None:
        yield run, True
    elif folder is not None:
        yield _own_run(folder), False
    else:
        with TemporaryDirectory() as place:
            yield Path(place) / "run", False


def _measure_order(
    session: Session,
    method: Method,
    run: Path,
    remove: float | None,
    tolerance: float | None,
    on_progress: OnProgress,
) -> None:
    method = replace(method, trials=method.trials and 1)  # one order makes one model
    if tolerance is None and method.step != AUTO:
        step = int(method.step)
        stops = max(1, session.units // MEASUREMENTS) // step * step
        method = replace(method, every=method.every or stops or step)
    run_comparison(
        session, [method], run, remove=[remove or 1.0], tolerance=tolerance, on_progress=on_progress
    )


def _within(run: Path, label: str, tolerance: float) -> float:
    """Return how much may be removed; a run that ended before the limit does not show it."""
    results = read_run(run)
    curve = results.first_trial(label)
    removed, last = curve.within(tolerance), curve.removed[-1]
    if removed == last < 1:
        log.warning(
            "%s ends at %.3g removed, still within `tolerance` %g: more could perhaps be removed. Resume it "
            "with a larger `remove`",
            *(run, last, tolerance),
        )
    return removed


def _known_rows(session: Session, run: Path, label: str, removed: float) -> dict[float, dict[str, Any]]:
    """Rows of the base and of the chosen level, by split, as far as they were measured on the same data."""
    found: dict[float, dict[str, Any]] = {0.0: {}}
    if read_json(run / RUN).get("version") != VERSION:
        return found
    same = same_splits(session, run)
    for row in read_rows(run / ROWS):
        ours = row["method"] in (BASE, label) and row["phase"] == ONE_SHOT and not row["trial"]
        if ours and row["split"] in same and row["removed"] in (0.0, removed):
            found.setdefault(row["removed"], {})[row["split"]] = row
    return found


def basic_facts(session: Session, method: Method, removed: float) -> dict[str, Any]:
    """Name what was pruned, how and by how much."""
    return {
        "model": session.name,
        "task": session.task.name,
        "target": session.target,
        "method": method.label,
        "scope": method.scope,
        "removed": removed,
        "units": session.units,
        "metric": session.task.metric,
    }


def _described(
    session: Session,
    method: Method,
    facts: Mapping[str, Any],
    after: Mapping[str, Any],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Where the cut comes from, for the folder of the model: the run, its data, and what was measured."""
    metric = session.task.metric
    splits = about.get("splits") or about.get("parts") or {}
    return {
        "method": method.label,
        "removed": round(facts["removed"] * facts["units"]),
        "seed": about.get("seed"),
        **{split: splits.get(split, {}).get("n") for split in ("calibration", "validation")},
        "test": after["test"]["n"],
        "metric": metric,
        "test before": facts["before"]["test"][metric],
        "test after": after["test"][metric],
    }
