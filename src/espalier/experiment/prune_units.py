"""Prune heads or neurons to a fraction or a tolerance: the smaller model, and facts before and after."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..analysis.curves import BASE, ONE_SHOT, Tolerance
from ..analysis.reader import read_run
from ..analysis.record import VERSION, MeasuredRow, RunRecord, read_measured, read_record
from ..architectures.stack import StackSite
from ..core import distributed
from ..core.batches import Batch
from ..core.errors import ConflictError, InvalidValueError, UnsupportedError
from ..core.mask import Mask
from ..core.progress import OnProgress, Progress, ignore
from ..core.terminal import log
from ..evaluation.latency import describe_rounds, speedup_of, time_rounds
from ..io.paths import run_beside
from ..pruning.cut import cut
from ..pruning.repair import NONE
from ..storage.save import save
from .assessment import assess, find_chance, weight_bytes
from .levels import removal
from .manifest import check_folder, check_same_model, same_splits
from .method import AUTO, Method, check_learned
from .record import mask_at
from .repair import repair_cut
from .runner import run_comparison
from .session import Session
from .walk import count_removed

ROUNDS = 11  # passes of each model that are timed
MEASUREMENTS = 8  # on the way to a fraction, so that a killed run has something to resume from


def check_units(
    method: Method, remove: float | None, tolerance: Tolerance | None, run: Path | None, folder: Path | None
) -> None:
    """Raise for what cannot be done, before anything is loaded."""
    check_learned(method, False)
    if remove is not None and tolerance is not None:
        raise InvalidValueError(
            "`remove` says how much to remove, `tolerance` how much may be lost: give one of them, not both",
            "tolerance",
        )
    if remove is None and tolerance is None:
        raise InvalidValueError(
            "say how much: `remove` is a fraction as 0.5, `tolerance` the loss allowed as 1pt; `speedup`, "
            "`macs`, `params`, `size` and `latency` are budgets",
            "remove",
        )
    if remove is not None:
        removal(method, remove)
    if run is not None:
        read_run(run).curve(method.label)
    elif folder is not None:
        check_folder(run_beside(folder))


def check_cuttable(session: Session) -> None:
    """Raise if some of the units can be gated but not cut."""
    fixed = next((site for site in session.sites if site.uncuttable), None)
    if fixed is not None:
        raise UnsupportedError(f"{fixed.name} cannot be cut: {fixed.uncuttable}")


def prune_units(
    session: Session,
    method: Method,
    *,
    remove: float | None = None,
    tolerance: Tolerance | None = None,
    folder: Path | None = None,
    run: Path | None = None,
    repair: str = NONE,
    overwrite: bool = False,
    on_progress: OnProgress = ignore,
) -> tuple[Any, dict[str, Any]]:
    """Remove units by one method, repair and save what is left. Returns the model and facts about it.

    The order of removal is measured in `run`, or taken from it if it is a finished comparison; the repair
    follows what they choose.
    """
    check_cuttable(session)
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
            removed = _within(session, place, method.label, tolerance or 0.0)
        mask = mask_at(session, place, method.label, removed)
        small = copy.deepcopy(session.model)
        if mask.kept < 1:
            cut(small, mask, report=False)
        rows = _known_rows(session, place, method.label, removed)
        about = read_record(place)
        facts = basic_facts(session, method, 1 - mask.kept) | {
            "repair": repair,
            "layers": kept_units(session.sites, mask),
        }
        if repair != NONE:
            done = repair_cut(session, small, repair, on_progress)
            facts["repaired"] = [asdict(one) for one in done]
        changed = session.round_to_stored(small) or (repair != NONE and removed > 0)
        how: Any = {"on_progress": on_progress}
        facts["before"] = assess(session, session.model, folder=session.folder, rows=rows[0.0], **how)
        measured = None if changed else rows.get(removed)  # of the model as it was cut
        after = assess(session, small, rows=measured, **how)
        if folder is not None:
            origin = {
                **session.origin(),
                **_described(session, method, facts, after, about),
                "run": place.name,
                **({"repair": repair} if repair != NONE else {}),
            }
            with session.in_stored_dtype(small):
                where: Any = dict(overwrite=overwrite, output=f"prune of {session.name}")
                save(small, folder, tokenizer=session.tokenizer, origin=origin, **where)
        facts["after"] = after | {"bytes": weight_bytes(small, session.stored, folder)}
        facts |= find_chance(
            session,
            after,
            f"{session.name} with {100 * facts['removed']:.3g} % of the {session.target} removed",
        )
    on_progress(Progress("timing passes"))
    batch = session.test[len(session.test) // 2]
    times = time_rounds([session.model, small], batch, ROUNDS)
    facts |= {"latency": describe_rounds(times) | _shape(batch), "speedup": speedup_of(times)}
    return small, facts | {"folder": folder and str(folder), "run": run and str(run)}


def _shape(batch: Batch) -> dict[str, int]:
    """Return what was timed: a batch of test data."""
    size, tokens = batch["input_ids"].shape[:2]
    return {"batch_size": size, "max_length": tokens, "threads": torch.get_num_threads()}


def kept_units(sites: Sequence[Any], mask: Mask) -> list[dict[str, Any]]:
    """List how many units each site keeps; of blocks and sublayers also which go, as numbered unpruned."""
    found = []
    for site in (site for site in sites if site.name in mask):
        kept = mask[site.name]
        row: dict[str, Any] = {"site": site.name, "kept": int(kept.sum()), "units": kept.numel()}
        if isinstance(site, StackSite):
            row["removed"] = [part.number for part, stays in zip(site.parts, kept.tolist()) if not stays]
        found.append(row)
    return found


@contextmanager
def _run_folder(run: Path | None, folder: Path | None) -> Iterator[tuple[Path, bool]]:
    """Give the folder of the rows, and whether they are those of a finished comparison."""
    if run is not None:
        yield run, True
    elif folder is not None:
        yield run_beside(folder), False
    else:
        with TemporaryDirectory() as place:
            yield Path(place) / "run", False


def _measure_order(
    session: Session,
    method: Method,
    run: Path,
    remove: float | None,
    tolerance: Tolerance | None,
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


def _within(session: Session, run: Path, label: str, tolerance: Tolerance) -> float:
    """Return how much may be removed; a run that ended before the limit does not show it."""
    measured, named = read_record(run).metric, session.columns.get("metric", None)
    if named not in (None, measured):
        raise ConflictError(
            f"the run {run} measured by {measured}, `metric` is {named}: compare by {named}, or leave it out",
            run,
        )
    results = read_run(run)
    curve = results.first_trial(label)
    removed, last = curve.within(tolerance), curve.removed[-1]
    if removed == last < 1:
        log.warning(
            "%s ends at %.3g removed, still within `tolerance` %s: more could perhaps be removed. Resume it "
            "with a larger `remove`",
            *(run, last, tolerance),
        )
    return removed


def _known_rows(
    session: Session, run: Path, label: str, removed: float
) -> dict[float, dict[str, MeasuredRow]]:
    """Rows of the base and of the chosen level, by split, as far as they were measured on the same data."""
    found: dict[float, dict[str, MeasuredRow]] = {0.0: {}}
    record = read_record(run)
    same = same_splits(session, run) if record.version == VERSION else set()
    for row in read_measured(run, record):
        ours = row.method in (BASE, label) and row.phase == ONE_SHOT and not row.trial
        kept = row.split in same and row.predictions is not None
        if ours and kept and row.removed in (0.0, removed):
            found.setdefault(row.removed, {})[row.split] = row
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
    about: RunRecord,
) -> dict[str, Any]:
    """Where the cut comes from, for the folder of the model: the run, its data, and what was measured."""
    metric, splits = session.task.metric, about.splits
    return {
        "method": method.label,
        "removed": round(facts["removed"] * facts["units"]),
        "seed": about.seed,
        **{name: splits[name].n if name in splits else None for name in ("calibration", "validation")},
        "test": after["test"]["n"],
        "metric": metric,
        "test before": facts["before"]["test"][metric],
        "test after": after["test"][metric],
    }
