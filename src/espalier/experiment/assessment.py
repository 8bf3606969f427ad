"""What a model is worth and what it costs: metrics with intervals, parameters, zeros, MACs, bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..analysis.bootstrap import value_interval
from ..analysis.curves import BASE, Tolerance
from ..analysis.reader import read_run
from ..analysis.record import read_record
from ..architectures.sites import sites as find_sites
from ..core.errors import FolderError, InvalidValueError
from ..core.progress import OnProgress, count_calls, ignore
from ..core.terminal import log
from ..engine.memory import memory_length
from ..evaluation import metrics
from ..evaluation.cost import cost
from ..evaluation.predictions import Predictions, unpack
from ..exporters.exported import ExportedModel
from ..io.paths import ROWS, named_path
from ..pruning.loop import WorkingCopy
from ..tokens.cost import dropped_macs
from ..tokens.installation import schedule_of
from ..tokens.schedule import THRESHOLD
from .classes import check_numbering
from .manifest import check_same_model
from .record import mask_at
from .session import TEST, VALIDATION, AnyModel, AnyTask, Session, open_session

SPLITS = (VALIDATION, TEST)


def assess(
    session: Session,
    model: Any,
    *,
    folder: Path | None = None,
    rows: Mapping[str, Any] | None = None,
    trained: bool = False,
    base: bool = False,
    on_progress: OnProgress = ignore,
) -> dict[str, Any]:
    """Measure validation and test data and count the model; `rows` are measured splits, by name.

    Of a `base`, a model as it was given, it is checked that its classes are those of the task.
    """
    how: Any = {"base": base, "on_progress": on_progress}
    worth = {split: measure_split(session, model, split, (rows or {}).get(split), **how) for split in SPLITS}
    stored = (session.opened or session.stored) if model is session.model else session.stored
    return worth | count_model(model, folder, torch.float32 if trained else stored)


def predict_split(
    session: Session, model: Any, split: str, on_progress: OnProgress, what: str = ""
) -> Predictions:
    """Predict a split, and report its batches; `what` names the model."""
    stage = f"evaluating {what} on {split} data" if what else f"evaluating on {split} data"
    return session.predict(model, split, count_calls(on_progress, stage, len(session.batches(split))))


def measure_split(
    session: Session,
    model: Any,
    split: str,
    row: Any = None,
    *,
    base: bool = False,
    what: str = "",
    on_progress: OnProgress = ignore,
) -> dict[str, Any]:
    """Return every metric of one split, and a 95 % interval of the task's own; None for what is undefined."""
    if row is not None:
        found, values, n = row.metrics, unpack(row.predictions), row.n
    else:
        predictions = predict_split(session, model, split, on_progress, what)
        found, values = session.metrics(predictions, split), predictions.values
        n = len(values)
    name, truth = session.task.metric, session.truth(split)
    if base and split == VALIDATION:
        check_numbering(session.task, model, truth, np.asarray(values))
    low, high = (None, None) if found[name] is None else value_interval(name, truth, np.asarray(values))
    out = {"n": n, "metric": name, **found, "low": low, "high": high, **_reading(session, model, split)}
    undefined = [name for name, value in found.items() if value is None]
    return out | ({"undefined": f"{', '.join(undefined)}: {session.constant(split)}"} if undefined else {})


def _reading(session: Session, model: Any, split: str) -> dict[str, int]:
    """Say how a text was read that is one stream: words predicted, those of a segment, and of the memory."""
    batches = session.batches(split)
    if not batches.stream:
        return {}
    words = sum(batch["labels"].shape[1] - 1 for batch in batches)
    return {"words": words, "segment": session.max_length, "memory": memory_length(model)}


def count_model(model: Any, folder: Path | None = None, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Count units, parameters, zeros, MACs, and bytes: those of a folder, else in `dtype`."""
    if isinstance(model, ExportedModel):  # its weights are not at hand; the record has its counts
        unknown = dict.fromkeys(("zeros", "prunable", "prunable_zeros", "sparsity"))
        return {**model.record["counts"], **unknown, "bytes": model.record["bytes"]}
    matrices = find_sites(model, "weights")
    prunable = sum(site.units for site in matrices)
    zero = sum(int((site.linear.weight == 0).sum()) for site in matrices)
    with torch.no_grad():
        everywhere = sum(int((p == 0).sum()) for p in model.parameters())
    counted = cost(model)
    schedule = schedule_of(model)
    fewer: dict[str, Any] = {}
    if schedule is not None:
        known = schedule.way != THRESHOLD
        fewer = {"macs": dropped_macs(model, schedule, counted.tokens)} if known else {}
        fewer |= {"token_schedule": schedule.about()}
    return {
        **counted.dict(),
        **fewer,
        "zeros": everywhere,
        "prunable": prunable,
        "prunable_zeros": zero,
        "sparsity": zero / prunable if prunable else 0.0,
        "bytes": weight_bytes(model, dtype, folder),
    }


def weight_bytes(model: Any, dtype: torch.dtype, folder: Path | None) -> int:
    """Return the bytes of the weights: on disk if there is a folder, else of all parameters in `dtype`."""
    size = 0 if folder is None else sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return size or sum(p.numel() for p in model.parameters()) * dtype.itemsize


def check_run_target(run: Path, of: object) -> str:
    """Return the target of a comparison; raise unless what it chose can be cut out of the model `of`."""
    target = read_record(run).target
    if of is None or target == "weights":
        hint = "make the model with espalier.prune" if target == "weights" else "name its model in `of`"
        raise FolderError(f"{run} is a comparison and holds no weights: {hint}", run)
    return target


def assess_run(
    session: Session, run: Path, tolerance: Tolerance, on_progress: OnProgress = ignore
) -> list[dict[str, Any]]:
    """Measure what every method of a comparison chose, on the session's data."""
    check_same_model(session, run)
    results, small = read_run(run), WorkingCopy(session.model, session.sites)
    found = []
    for label in (BASE, *results.methods):
        removed = 0.0 if label == BASE else results.first_trial(label).within(tolerance)
        with small.at(mask_at(session, run, label, removed)) as (model, _):
            how: Any = {"what": label, "on_progress": on_progress}
            worth = {split: measure_split(session, model, split, **how) for split in SPLITS}
            counted = count_model(model)["parameters"]
        found.append({"method": label, "removed": results.count(removed), "parameters": counted, **worth})
    return found


def evaluate_model(
    model: AnyModel, task: AnyTask, of: AnyModel | None, tolerance: Tolerance, options: Any, on_progress: Any
) -> dict[str, Any]:
    """Measure a model, exported or not; or, of a comparison, the `points` that its methods chose."""
    run = named_path(model, "model") if isinstance(model, (str, Path)) else None
    opening: Any = {**options, "calibration": 1, "on_progress": on_progress}
    if run is None or not (run / ROWS).is_file():
        if of is not None:
            raise InvalidValueError(f"`of` is for the folder of a comparison, and {model} is none", "of")
        session = open_session(model, task, target="weights", exported=True, **opening)
        found = assess(session, session.model, folder=session.folder, base=True, on_progress=on_progress)
        chance = find_chance(session, found, session.name)
        return {"model": session.name, "task": session.task.name, **found, **chance}
    target = check_run_target(run, of)
    session = open_session(of, task, target=target, **opening)  # type: ignore[arg-type]
    facts = {"run": run.name, "model": session.name, "task": session.task.name, "tolerance": tolerance}
    return {**facts, "points": assess_run(session, run, tolerance, on_progress)}


def find_chance(
    session: Session, found: Mapping[str, Any], who: str, *, warned: bool = False
) -> dict[str, Any]:
    """Return what the most frequent class alone would give; warn where a model is not above it.

    Of a model that was made of one that is `warned` about there is nothing new to say.
    """
    truths = {split: session.truth(split) for split in SPLITS if found[split].get("accuracy") is not None}
    share = {split: metrics.majority_share(truth) for split, truth in truths.items() if truth is not None}
    at_chance = [split for split in share if found[split]["accuracy"] <= share[split]]
    if at_chance and not warned:
        log.warning(
            "%s is no better than always predicting the most frequent class: %s",
            who,
            ", ".join(
                f"accuracy {found[x]['accuracy']:.4g} on {x} data, where that class has {share[x]:.4g}"
                for x in at_chance
            ),
        )
    return {"majority": share, "at_chance": at_chance} if share else {}
