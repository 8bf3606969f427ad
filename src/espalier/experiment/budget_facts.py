"""The end of a pruning to a budget: the model is measured on test data and saved, facts are collected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..analysis.curves import Tolerance
from ..core.progress import Progress
from ..evaluation.latency import describe_rounds, speedup_of
from ..storage.save import save
from .assessment import SPLITS, assess, find_chance, predict_split, weight_bytes
from .budget import Budget
from .prune_units import kept_units
from .reference import Reference
from .session import TEST, VALIDATION

if TYPE_CHECKING:
    from .prune_budget import BudgetRun, Pruned


def finish_model(
    run: BudgetRun, before: Reference, made: Pruned, budget: Budget | None, folder: Path | None
) -> tuple[Any, dict[str, Any]]:
    """Measure on test data, save, and collect the facts."""
    session, small = run.session, made.model
    session.round_to_stored(small)  # what is measured is what is saved
    with run._clock("measuring"):
        how: Any = (run.on_progress, "the pruned model")
        predictions = {split: predict_split(session, small, split, *how) for split in SPLITS}
    run.on_progress(Progress("computing intervals"))
    change = {split: before.change(predictions[split], split) for split in SPLITS}
    found = {
        "kind": budget.kind if budget else "tolerance",
        "asked": made.asked,
        "achieved": made.achieved if budget else _lost(change[VALIDATION]),
        "met": made.met if budget else _is_within(before, change[TEST], run.options.tolerance),
    }
    if folder is not None:
        run.on_progress(Progress("saving", message=f"saving to {folder}"))
        origin = {**session.origin(), "method": run.method.label, "repair": run.options.repair}
        origin |= {"budget": found, "original": before.original}
        with session.in_stored_dtype(small):
            where: Any = dict(overwrite=run.options.overwrite, output=f"prune of {session.name}")
            save(small, folder, tokenizer=session.tokenizer, origin=origin, **where)
    times = run.time(small) if made.times is None else made.times
    facts: dict[str, Any] = {
        "model": session.name,
        "task": session.task.name,
        "target": session.target,
        "method": run.method.label,
        "repair": run.options.repair,
        "metric": session.task.metric,
        "budget": found,
        "original": before.original,
        "change": change,
        "before": before.facts,
        "after": assess(session, small, rows=before.rows(predictions)),
        "layers": kept_units(run.sites, made.mask),
        "repaired": [asdict(one) for one in made.repaired],
        "latency": describe_rounds(times) | asdict(run.shape) | {"threads": torch.get_num_threads()},
        "speedup": speedup_of(times),
        "seconds": run.lap(),
        "folder": folder and str(folder),
    }
    facts |= {"agreement": True} if session.unlabelled else {}
    who = f"{session.name} within a budget of {made.asked}"
    facts |= find_chance(session, facts["after"], who, warned=before.at_chance)
    facts["after"]["bytes"] = weight_bytes(small, session.stored, folder)
    return small, facts


def _lost(change: Mapping[str, Any]) -> float:
    return -change["value"] if change["value"] is not None else 0.0


def _is_within(before: Reference, change: Mapping[str, Any], tolerance: Tolerance | None) -> bool:
    return change["value"] is not None and change["value"] >= -before.allowed(tolerance or 0.0, TEST)
