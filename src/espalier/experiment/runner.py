"""The experiment: every method at every level, measured and written row by row in a folder that can resume.

A run folder holds run.json (what was asked), rows.jsonl (what was measured) and scores.jsonl (scores of the
unpruned model). A killed run resumes where it was: a row depends only on its method, phase, trial and level,
not on the process that measures it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from ..analysis.curves import BASE, GRADUAL, ONE_SHOT, RECOVERED, Tolerance
from ..analysis.record import read_measured
from ..architectures.sites import sites as find_sites
from ..core import distributed
from ..core.progress import OnProgress, Progress, ignore
from ..core.terminal import log
from ..evaluation import metrics
from ..evaluation.cost import cost
from ..evaluation.predictions import pack
from ..io.paths import RUN, SCORES
from ..io.rows import Row, Rows, exclusive
from ..storage.size import sparse_cost
from ..tokens.installation import CONFIG_KEY as TOKEN_SCHEDULE
from .latency_table import time_pass
from .levels import check_levels, trained_levels
from .manifest import begin, check_folder, check_training, removing_if_empty, warn_about_base
from .method import Method
from .picture import write_pictures
from .record import RunRows, order_of, warn_about_passed
from .recovery import Recovery
from .session import TEST, VALIDATION, Session
from .walk import (
    CutWalk,
    Pruned,
    Shared,
    Stop,
    TrainCutWalk,
    TrainWalk,
    Walk,
    ZeroWalk,
    unit_levels,
)


def run_comparison(
    session: Session,
    methods: Sequence[Method],
    folder: Path,
    *,
    remove: Sequence[float],
    tolerance: Tolerance | None = 0.01,
    recovery: Recovery | None = None,
    all_scores: bool = False,
    timed: bool = False,
    test: bool = True,
    on_progress: OnProgress = ignore,
) -> Path:
    """Measure every method on validation, and on test the base and each chosen level. Returns the folder.

    The chosen level is the end of the longest unbroken stretch within `tolerance` of the base on validation;
    with None, the last level. Trained models are tested right after training, because they are not kept.
    """
    check_levels(session, methods, remove)
    check_folder(folder)
    first = distributed.rank() == 0  # it alone writes; the others compute their share
    with removing_if_empty(folder), exclusive(folder) if first else nullcontext():
        if first:
            before = read_measured(folder) if (folder / RUN).exists() else []
            if before:
                log.info("resuming: %d rows are in %s", len(before), folder)
            training = check_training(folder, before, methods, recovery)
            begin(session, methods, folder, seed=session.seed, tolerance=tolerance, training=training)
            if hasattr(session.model.config, TOKEN_SCHEDULE):
                write_pictures(session, folder)
        distributed.barrier()
        run = _Run(session, folder, remove, recovery, all_scores)
        run.timed = timed
        if first:
            run.report_to(on_progress, methods, test)
        run.measure_base(test)
        warn_about_base(session, run.rows)
        for method in methods:
            run.take(method)
            if test and not method.learned:
                run.test_chosen(method, tolerance)
    return folder


class _Run:
    """The state of one run: the rows so far, and what its walks share."""

    def __init__(
        self,
        session: Session,
        folder: Path,
        remove: Sequence[float],
        recovery: Recovery | None,
        all_scores: bool,
    ):
        self.session, self.folder, self.remove = session, folder, sorted(set(remove))
        self.recovery, self.all_scores = recovery, all_scores
        first = distributed.rank() == 0
        self.rows = RunRows(folder, session, write=first)
        self.shared = Shared(session, Rows(folder / SCORES, write=first))
        distributed.barrier()  # until all have read what was there
        self.walks: dict[tuple[str, int | None], Walk] = {}
        self.on_row = lambda row: None
        self.timed = False  # whether a pass of every model is timed

    # ------------------------------------------------------------------ what is measured

    def measure_base(self, test: bool) -> None:
        """Measure the unpruned model, and the same after the training: more data alone may help it."""
        walk = self._walk(Method(BASE, BASE), None)
        with walk.at(0.0) as pruned:
            for split in (VALIDATION, TEST) if test else (VALIDATION,):
                self._measure(walk, pruned, BASE, None, Stop(0.0), ONE_SHOT, split)
            if self.recovery and not self.rows.has(BASE, RECOVERED, None, 0.0, TEST):
                self._recover(walk, pruned, BASE, None, 0.0)

    def take(self, method: Method) -> None:
        """Measure all levels of a method: one-shot, recovered, gradual."""
        for trial in method.numbers():
            if not method.learned:
                self._prune_and_recover(method, trial)
            if self.recovery and self.recovery.gradual(method):
                train = TrainWalk if self.session.target == "weights" else TrainCutWalk
                walk = train(self.session, method, trial, self._trained_levels(), self.recovery)
                for stop in walk:
                    if not self.rows.has(method.label, GRADUAL, trial, stop.removed, TEST):
                        with walk.at(stop.removed) as pruned:
                            self._measure_both(walk, pruned, method.label, trial, stop, GRADUAL)

    def _prune_and_recover(self, method: Method, trial: int | None) -> None:
        walk, label = self._walk(method, trial), method.label
        self._recover_passed(walk, label, trial)
        for stop in walk:
            one_shot = not self.rows.has(label, ONE_SHOT, trial, stop.removed, VALIDATION)
            recover = not isinstance(walk, CutWalk) and self._is_recovered_at(label, trial, stop.removed)
            if one_shot or recover:
                with walk.at(stop.removed) as pruned:
                    self._measure(walk, pruned, label, trial, stop, ONE_SHOT, VALIDATION)
                    if recover:
                        self._recover(walk, pruned, label, trial, stop.removed)
            self._recover_passed(walk, label, trial)

    def _recover_passed(self, walk: Walk, label: str, trial: int | None) -> None:
        """Train the levels of heads and neurons that a walk has reached, now or before."""
        if isinstance(walk, CutWalk):
            for removed in self._trained_levels():
                reached = round(removed * self.session.units) <= len(walk.order)
                if reached and self._is_recovered_at(label, trial, removed):
                    with walk.at(removed) as pruned:
                        self._recover(walk, pruned, label, trial, removed)

    def test_chosen(self, method: Method, tolerance: Tolerance | None) -> None:
        """Measure one level on the split that nothing was chosen by."""
        curve = self.rows.curve(method.label, metrics.load(self.session.task.metric))
        chosen = curve.removed[-1] if tolerance is None else curve.within(tolerance)
        for trial in method.numbers() if chosen else ():
            if not self.rows.has(method.label, ONE_SHOT, trial, chosen, TEST):
                walk = self._walk(method, trial)
                with walk.at(chosen) as pruned:
                    self._measure(walk, pruned, method.label, trial, Stop(chosen), ONE_SHOT, TEST)

    # ------------------------------------------------------------------ how

    def _walk(self, method: Method, trial: int | None) -> Walk:
        """Return the walk of a method, with the scores it has; only those of the last method are kept."""
        if all(label != method.label for label, _ in self.walks):
            self.walks.clear()
        if (method.label, trial) not in self.walks:
            self.walks[method.label, trial] = self._new_walk(method, trial)
        return self.walks[method.label, trial]

    def _new_walk(self, method: Method, trial: int | None) -> Walk:
        session = self.session
        if session.target == "weights":
            return ZeroWalk(session, method, trial, self.remove)
        levels = [] if method.label == BASE else unit_levels(session, method, self.remove)
        own = self.rows.walked(method.label, trial)
        warn_about_passed(own, method, levels, session.units)
        pace = own[-1].get("pace") if own else None
        return CutWalk(session, method, trial, self.shared, levels, order_of(own), pace, self.all_scores)

    def _trained_levels(self) -> list[float]:
        return trained_levels(self.session, self.remove, self.recovery)

    def _is_recovered_at(self, label: str, trial: int | None, removed: float) -> bool:
        return removed in self._trained_levels() and not self.rows.has(label, RECOVERED, trial, removed, TEST)

    def _recover(self, walk: Walk, pruned: Pruned, label: str, trial: int | None, removed: float) -> None:
        assert self.recovery is not None
        start = time.perf_counter()
        model = walk.trainable(pruned[0])
        self.recovery.after(self.session, model, self.session.seed)
        walk.seconds["training"] = time.perf_counter() - start
        self._measure_both(walk, (model, pruned[1]), label, trial, Stop(removed), RECOVERED)

    def _measure_both(
        self, walk: Walk, pruned: Pruned, label: str, trial: int | None, stop: Stop, phase: str
    ) -> None:
        """Measure both splits, test last: only with it a training counts as done."""
        for split in (VALIDATION, TEST):
            self._measure(walk, pruned, label, trial, stop, phase, split)

    def _measure(
        self, walk: Walk, pruned: Pruned, label: str, trial: int | None, stop: Stop, phase: str, split: str
    ) -> None:
        """Add one row, unless it is there."""
        if self.rows.has(label, phase, trial, stop.removed, split):
            return
        found, seconds = self._measured(walk, pruned, stop.removed, phase, split)
        spent = {**stop.seconds, **walk.seconds, "evaluating": seconds}
        stop.seconds.clear()
        walk.seconds.clear()
        row = {
            "method": label,
            "phase": phase,
            "trial": trial,
            "removed": stop.removed,
            "split": split,
            **found,
            "order": None if stop.order is None else [list(unit) for unit in stop.order],
            "score": stop.score,
            **stop.facts,
            "seconds": {name: round(value, 4) for name, value in spent.items()},
            "seed": self.session.seed + (trial or 0),
        }
        self.rows.add(row)
        self.on_row(row)

    def _measured(
        self, walk: Walk, pruned: Pruned, removed: float, phase: str, split: str
    ) -> tuple[Row, float]:
        """Measure a split and take the time, unless the same units were removed before, by any method."""
        key = None
        if isinstance(walk, CutWalk) and phase == ONE_SHOT:
            key = (split, frozenset(walk.removed_units(removed)))
            if key in self.rows.measured:
                return self.rows.measured[key], 0.0
        start, scoring = time.perf_counter(), walk.scoring_seconds()
        if phase == ONE_SHOT:
            predictions = walk.predict(pruned, removed, split)
        else:
            predictions = self.session.predict(pruned[0], split)
        scoring = walk.scoring_seconds() - scoring  # belongs to the next row
        found: Row = {
            "metrics": self.session.metrics(predictions, split),
            "predictions": pack(predictions.values, self.session.task.kind),
            "n": len(predictions.losses),
            "cost": self._cost(pruned[0], self.session.stored if phase == ONE_SHOT else torch.float32),
        }
        if key is not None:
            self.rows.measured[key] = found
        return found, time.perf_counter() - start - scoring

    def _cost(self, model: Any, dtype: torch.dtype) -> Any:
        """Units and MACs of a cut model; zeros of a sparse one, and its bytes in a dtype."""
        if self.session.target == "weights":
            return sparse_cost(model, self.session.sites, dtype)
        found = cost(model)
        units = sum(site.units for site in find_sites(model, *self.session.target.split(",")))
        latency = {"latency": time_pass(model, self.session.max_length)} if self.timed else {}
        return {"units": units, "parameters": found.parameters, "macs": found.macs, **latency}

    def report_to(self, on_progress: OnProgress, methods: Sequence[Method], test: bool) -> None:
        """Report every row; a method with steps of its own makes fewer than expected."""
        trained, metric = len(self._trained_levels()), self.session.task.metric
        total, labels = 1 + test + 2 * bool(self.recovery), {BASE, *(method.label for method in methods)}
        for method in methods:
            weights = self.session.target == "weights"
            levels = self.remove if weights else unit_levels(self.session, method, self.remove)
            one = 0 if method.learned else len(levels) + test + 2 * trained
            gradual = 2 * trained if self.recovery and self.recovery.gradual(method) else 0
            total += len(method.numbers()) * (one + gradual)

        def on_row(row: Row) -> None:
            done = min(total, sum(known["method"] in labels for known in self.rows))
            name = row["method"] if row["trial"] is None else f"{row['method']} trial {row['trial'] + 1}"
            at = f"{row['phase']}, {100 * row['removed']:.3g} % removed"
            message = f"{name} {at}: {metric} {row['metrics'][metric]:.4g} on {row['split']}"
            on_progress(Progress("comparing", done, total, message))

        self.on_row = on_row
