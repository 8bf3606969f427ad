"""Prune a model to a fraction or a tolerance: the model, and what it was worth before and after."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..analysis.curves import BASE, ONE_SHOT
from ..analysis.reader import read_run
from ..core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from ..core.log import log
from ..core.mask import Mask
from ..core.progress import OnProgress, Progress, ignore
from ..evaluation.latency import side_by_side
from ..io.json_file import read_json
from ..io.paths import ROWS, RUN
from ..io.rows import read_rows
from ..pruning.cut import cut
from ..pruning.zero import zero
from ..selection.schedules import ONE_SHOT as AT_FIRST_STEP
from ..selection.schedules import Ramp
from ..selection.scopes import fraction, groups_of, remove_lowest
from ..storage.save import save
from ..training.callbacks import count_zeros
from ..training.held_mask import mask_of_zeros
from .assessment import assess
from .levels import check_reachable, removal
from .manifest import check_folder, check_same_model, has_same_test
from .method import AUTO, Method, check_learned
from .model import check_output
from .recovery import gradual_callback
from .runner import mask_at, run_comparison
from .session import Session, SessionOptions
from .training import train_session
from .scoring import score_session
from .walk import repair

TRAINING = (
    *("schedule", "initial", "until", "mask_interval", "ste", "l1"),
    *("lr", "batch_size", "examples", "overwrite"),
)
MEASUREMENTS = 8  # on the way to a fraction, so that a killed run has something to resume from


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
        removed = (remove or 0.0) if tolerance is None else _within(place, method.label, tolerance)
        mask = mask_at(session, place, method.label, removed)
        small = copy.deepcopy(session.model)
        if mask.kept < 1:
            cut(small, mask, report=False)
        rows = _known_rows(session, place, method.label, removed)
        about = read_json(place / RUN)
        facts = _facts(session, method, 1 - mask.kept)
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
        facts["after"] = after | _bytes(small, session, folder)
    seconds = side_by_side([session.model, small], session.test[len(session.test) // 2])
    facts |= {"speedup": seconds[0] / seconds[1], "folder": folder and str(folder), "run": run and str(run)}
    return small, facts


@contextmanager
def _run_folder(run: Path | None, folder: Path | None) -> Any:
    """The folder of the rows, and whether they are those of a finished comparison."""
    if run is not None:
        yield run, True
    elif folder is not None:
        yield folder.with_name(f"{folder.name}-run"), False
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
    if read_json(run / RUN).get("version") != 2:
        return found
    same = has_same_test(session, run)
    for row in read_rows(run / ROWS):
        ours = row["method"] in (BASE, label) and row["phase"] == ONE_SHOT and not row["trial"]
        if ours and (same or row["split"] != "test") and row["n"] == session.batches(row["split"]).examples:
            if row["removed"] in (0.0, removed):
                found.setdefault(row["removed"], {})[row["split"]] = row
    return found


def prune_weights(
    session: Session,
    method: Method,
    *,
    remove: float | None = None,
    folder: Path | None = None,
    epochs: int = 0,
    schedule: str = "cubic",
    initial: float = 0.0,
    until: float = 0.75,
    mask_interval: int | None = None,
    ste: bool = False,
    l1: float = 0.0,
    on_progress: OnProgress = ignore,
    **training: Any,
) -> tuple[Any, dict[str, Any]]:
    """Set weights to zero, in one shot or while the model trains, and save. Returns the model and facts."""
    removed = check_weights(method, remove, epochs, schedule, initial)
    check_reachable(session, [method], [removed])
    facts = _facts(session, method, removed) | {"schedule": schedule if epochs else AT_FIRST_STEP}
    on_progress(Progress("measuring the model before pruning"))
    facts["before"] = assess(session, session.model, folder=session.folder)
    origin = session.origin() | {
        "target": "weights",
        "method": method.label,
        "scope": method.scope,
        "remove": removed,
    }
    if epochs:
        callback = gradual_callback(
            session,
            method,
            removed,
            schedule=schedule,
            initial=initial,
            until=until,
            mask_interval=mask_interval,
            **({} if method.learned else {"ste": ste, "l1": l1}),
        )
        origin |= {"schedule": schedule}
        train_session(session, folder, origin, callback, epochs=epochs, on_progress=on_progress, **training)
    else:
        _prune_in_one_shot(session, method, removed)
        origin |= {"repaired": method.repairs} if method.repairs else {}
        if folder is not None:
            origin |= {"sparsity": count_zeros(session.sites)}
            with session.in_stored_dtype(session.model):
                save(session.model, folder, tokenizer=session.tokenizer, origin=origin)
    on_progress(Progress("measuring the pruned model"))
    facts["after"] = assess(session, session.model, folder=folder)
    zeros = count_zeros(session.sites)
    facts["pruned"] = {"also": list(session.also), "weights": zeros["weights"], "zero": zeros["zero"]}
    return session.model, facts | {"folder": folder and str(folder)}


def check_prune(
    method: Method,
    model: Any,
    folder: Path | None,
    run: Path | None,
    weights: bool,
    remove: float | None,
    tolerance: float | None,
    epochs: int,
    more: Mapping[str, Any],
) -> None:
    """Raise for what cannot be done, before anything is loaded."""
    training = [name for name in more if name in TRAINING]
    unknown = [name for name in more if name not in TRAINING]
    if unknown:
        raise UnknownNameError("option of prune:", unknown[0], [*TRAINING, *SessionOptions.__annotations__])
    if training and not epochs:
        raise InvalidValueError(f"`{training[0]}` needs `epochs` of at least 1", training[0])
    if weights:
        if tolerance is not None or run is not None:
            raise InvalidValueError(
                "weights are pruned to a fraction: `remove`, not `tolerance` or `run`", "tolerance"
            )
        check_weights(method, remove, epochs, more.get("schedule", "cubic"), more.get("initial", 0.0))
    else:
        if epochs:
            raise InvalidValueError(
                "`epochs` needs target weights; to train after cutting use recover", "epochs"
            )
        if (remove is None) == (tolerance is None):
            raise InvalidValueError("give either `remove`, a fraction, or `tolerance`", "remove")
        if remove is not None:
            fraction(remove)
        if run is not None:
            read_run(run).curve(method.label)
    if folder is not None:
        if not epochs:
            check_output(folder, model if isinstance(model, (str, Path)) else None)
        if not weights and run is None:
            check_folder(folder.with_name(f"{folder.name}-run"))


def check_weights(
    method: Method, remove: float | None, epochs: int, schedule: str = "cubic", initial: float = 0.0
) -> float:
    """Return the fraction to remove; raise for combinations that make no sense, before anything is loaded."""
    removed = removal(method, remove)
    check_learned(method, epochs > 0)
    Ramp(removed, 1, schedule, initial)
    if epochs and groups_of(method.scope) and schedule != AT_FIRST_STEP:
        raise InvalidValueError(
            f"N:M has no fractions on the way: with `scope` {method.scope}, `schedule` must be {AT_FIRST_STEP!r}",
            "schedule",
        )
    return removed


def _prune_in_one_shot(session: Session, method: Method, removed: float) -> Mask:
    kept = mask_of_zeros(session.sites)
    if method.repairs:
        return repair(session, method, removed, kept)
    if method.loaded.repairs:
        log.warning(
            "%s updates the kept weights only within %s; with `scope` %s its scores choose and nothing is repaired",
            *(method.label, " or ".join(method.loaded.repairs), method.scope),
        )
    mask = remove_lowest(score_session(session, method), removed, scope=method.scope, mask=kept)
    zero(session.model, mask)
    return mask


def _facts(session: Session, method: Method, removed: float) -> dict[str, Any]:
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


def _bytes(model: Any, session: Session, folder: Path | None) -> dict[str, Any]:
    if folder is not None:
        return {"bytes": sum(file.stat().st_size for file in folder.glob("*.safetensors"))}
    return {"bytes": sum(p.numel() for p in model.parameters()) * session.stored.itemsize}
