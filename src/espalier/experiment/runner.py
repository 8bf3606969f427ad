"""The experiment: every method at every level, measured and written row by row in a folder that can resume.

A run folder holds run.json (what was asked), rows.jsonl (what was measured) and scores.jsonl (scores of the
unpruned model). A killed run resumes where it was: a row depends only on its method, phase, trial and level,
not on the process that measures it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ..analysis.curves import BASE, GRADUAL, ONE_SHOT, RECOVERED
from ..analysis.reader import read_run
from ..core import distributed
from ..core.errors import FormatError, InvalidValueError, UnsupportedError
from ..core.log import log
from ..core.mask import Mask
from ..core.progress import OnProgress, Progress, ignore
from ..evaluation.cost import cost
from ..evaluation.predictions import pack
from ..io.paths import ROWS, SCORES
from ..io.rows import Row, Rows, exclusive, read_rows
from ..selection.pace import Unit
from ..storage.size import sparse_cost
from .levels import check_reachable
from .manifest import begin, check_folder, check_training, warn_about_base
from .method import Method
from .recovery import Recovery
from .session import TEST, VALIDATION, Session
from .walk import CutWalk, Shared, Stop, TrainCutWalk, TrainWalk, Walk, ZeroWalk, mask_without, unit_levels

TRAINED_LEVELS = (0.25, 0.5, 0.75)  # of heads and neurons, where no levels are given


def run_comparison(
    session: Session,
    methods: Sequence[Method],
    folder: Path,
    *,
    remove: Sequence[float],
    tolerance: float | None = 0.01,
    recovery: Recovery | None = None,
    all_scores: bool = False,
    test: bool = True,
    on_progress: OnProgress = ignore,
) -> Path:
    """Measure every method on validation, and on test the base and each chosen level. Returns the folder.

    The chosen level is the end of the longest unbroken stretch within `tolerance` of the base on validation;
    with None, the last level. Trained models are tested at once, because they are not kept.
    """
    _check(session, methods, remove)
    check_folder(folder)
    first = distributed.rank() == 0  # it alone writes; the others compute their share
    with exclusive(folder) if first else nullcontext(), _counting(folder):
        if first:
            training = recovery.settings() if recovery else None
            check_training(folder, read_rows(folder / ROWS), training)
            asked = {"seed": session.seed, "tolerance": tolerance, "training": training}
            begin(session, methods, folder, **asked)
        distributed.barrier()
        run = _Run(
            session, methods, folder, remove, recovery, all_scores, test, on_progress if first else ignore
        )
        run.measure_base()
        warn_about_base(session, run.rows)
        for method in methods:
            run.take(method)
            if test and not method.learned:
                run.test_chosen(method, tolerance)
    return folder


def _check(session: Session, methods: Sequence[Method], remove: Sequence[float]) -> None:
    """Raise before the first hour, not after it."""
    if not remove or not all(0 < fraction <= 1 for fraction in remove):
        raise InvalidValueError(f"`remove` is one or more fractions above 0, up to 1; got {remove}", "remove")
    if session.target == "weights":
        check_reachable(session, methods, remove)
    elif round((1 - max(remove)) * session.units) >= session.units:
        raise InvalidValueError(f"`remove` {max(remove):g} of {session.units} units removes none", "remove")


@contextmanager
def _counting(folder: Path) -> Iterator[None]:
    """Say how many rows a run has when it is resumed, and attach the number to an interruption."""
    there = len(read_rows(folder / ROWS))
    if there:
        log.info("resuming: %d rows are in %s", there, folder)
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(f"{len(read_rows(folder / ROWS))} rows are in {folder}; repeat the call to resume")
        raise


class _Run:
    """The state of one run: the rows so far, and what its walks share."""

    def __init__(
        self,
        session: Session,
        methods: Sequence[Method],
        folder: Path,
        remove: Sequence[float],
        recovery: Recovery | None,
        all_scores: bool,
        test: bool,
        on_progress: OnProgress,
    ):
        self.session, self.folder, self.remove = session, folder, sorted(set(remove))
        self.recovery, self.all_scores, self.on_progress = recovery, all_scores, on_progress
        first = distributed.rank() == 0
        self.rows = Rows(folder / ROWS, write=first)
        self.shared = Shared(session, Rows(folder / SCORES, write=first))
        distributed.barrier()  # until all have read what was there
        self.known = {_key(row): row for row in self.rows}
        self.measured: dict[tuple[str, frozenset[Unit]], Row] = {}
        self.walks: dict[tuple[str, int | None], Walk] = {}
        self._remember_measured()
        self.total = self._expected(methods, test)
        self.labels = {BASE, *(method.label for method in methods)}

    # ------------------------------------------------------------------ what is measured

    def measure_base(self) -> None:
        """Measure the unpruned model, and the same after the training: more data alone may help it."""
        walk = self._walk(Method(BASE, BASE), None)
        for split in (VALIDATION, TEST):
            self._measure(walk, BASE, None, Stop(0.0), ONE_SHOT, split)
        if self.recovery and not self._has(BASE, RECOVERED, None, 0.0, TEST):
            with walk.at(0.0) as (model, sites):
                self._recover(walk, (model, sites), BASE, None, Stop(0.0))

    def take(self, method: Method) -> None:
        """Measure all levels of a method: one-shot, recovered, gradual."""
        for trial in method.numbers():
            if not method.learned:
                self._prune_and_recover(method, trial)
            if self.recovery and self.recovery.gradual(method):
                train = TrainWalk if self.session.target == "weights" else TrainCutWalk
                walk = train(self.session, method, trial, self._trained_levels(), self.recovery)
                for stop in walk:
                    if not self._has(method.label, GRADUAL, trial, stop.removed, TEST):
                        with walk.at(stop.removed) as pruned:
                            self._add_both(walk, pruned, method.label, trial, stop, GRADUAL)

    def _prune_and_recover(self, method: Method, trial: int | None) -> None:
        walk = self._walk(method, trial)
        for stop in walk:
            train = self._to_recover(method, trial, stop)
            if not train and self._has(method.label, ONE_SHOT, trial, stop.removed, VALIDATION):
                continue
            with walk.at(stop.removed) as pruned:
                self._measure(walk, method.label, trial, stop, ONE_SHOT, VALIDATION, pruned)
                if train:
                    self._recover(walk, pruned, method.label, trial, stop)
        if isinstance(walk, CutWalk):  # levels that were walked past in an earlier session
            for stop in map(Stop, self._trained_levels()):
                if self._to_recover(method, trial, stop):
                    with walk.at(stop.removed) as pruned:
                        self._recover(walk, pruned, method.label, trial, stop)

    def test_chosen(self, method: Method, tolerance: float | None) -> None:
        """Measure one level on the split that nothing was chosen by."""
        distributed.barrier()  # until the last row is on disk
        results = read_run(self.folder)
        curve = results.curve(method.label)
        chosen = curve.removed[-1] if tolerance is None else curve.within(tolerance)
        for trial in method.numbers() if chosen else ():
            if not self._has(method.label, ONE_SHOT, trial, chosen, TEST):
                walk = self._walk(method, trial)
                with walk.at(chosen) as pruned:
                    self._measure(walk, method.label, trial, Stop(chosen), ONE_SHOT, TEST, pruned)

    # ------------------------------------------------------------------ how

    def _walk(self, method: Method, trial: int | None) -> Walk:
        """Return the walk of a method, with the scores it has; only those of the last method are kept."""
        if method.label not in {label for label, _ in self.walks}:
            self.walks.clear()
        if (method.label, trial) not in self.walks:
            self.walks[method.label, trial] = self._new_walk(method, trial)
        return self.walks[method.label, trial]

    def _new_walk(self, method: Method, trial: int | None) -> Walk:
        session = self.session
        if session.target == "weights":
            return ZeroWalk(session, method, trial, self.remove)
        if method.label == BASE:
            return CutWalk(session, method, trial, self.shared, levels=[])
        own = [row for row in self.rows if _of(row, method.label, trial)]
        return CutWalk(
            session,
            method,
            trial,
            self.shared,
            levels=unit_levels(session, method, self.remove),
            order=[(layer, unit) for row in own for layer, unit in row["order"] or ()],
            pace=own[-1].get("pace") if own else None,
            all_scores=self.all_scores,
        )

    def _trained_levels(self) -> list[float]:
        if self.session.target == "weights":
            return self.remove
        units, last = self.session.units, self.remove[-1]
        levels = self.remove if len(self.remove) > 1 else [x for x in TRAINED_LEVELS if x < last] or [last]
        return sorted({(units - round((1 - level) * units)) / units for level in levels} - {0.0})

    def _to_recover(self, method: Method, trial: int | None, stop: Stop) -> bool:
        if self.recovery is None or self._has(method.label, RECOVERED, trial, stop.removed, TEST):
            return False
        return stop.removed in self._trained_levels()

    def _recover(self, walk: Walk, pruned: Any, label: str, trial: int | None, stop: Stop) -> None:
        assert self.recovery is not None
        start = time.perf_counter()
        model = walk.trainable(pruned[0])
        self.recovery.after(self.session, model, self.session.seed)
        walk.seconds["training"] = time.perf_counter() - start
        self._add_both(walk, (model, pruned[1]), label, trial, Stop(stop.removed), RECOVERED)

    def _add_both(
        self, walk: Walk, pruned: Any, label: str, trial: int | None, stop: Stop, phase: str
    ) -> None:
        """Measure both splits, test last: only with it a training counts as done."""
        for split in (VALIDATION, TEST):
            self._measure(walk, label, trial, stop, phase, split, pruned)

    def _measure(
        self,
        walk: Walk,
        label: str,
        trial: int | None,
        stop: Stop,
        phase: str,
        split: str,
        pruned: Any = None,
    ) -> None:
        """Add one row, unless it is there."""
        if self._has(label, phase, trial, stop.removed, split):
            return
        if pruned is None:
            with walk.at(stop.removed) as pruned:
                found, seconds = self._measured(walk, stop, phase, split, pruned)
        else:
            found, seconds = self._measured(walk, stop, phase, split, pruned)
        spent = {**stop.seconds, **walk.seconds, **seconds}
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
        if split == VALIDATION:
            stop.seconds.clear()
        self.rows.add(row)
        self.known[_key(row)] = row
        self._report(row)

    def _measured(
        self, walk: Walk, stop: Stop, phase: str, split: str, pruned: Any
    ) -> tuple[Row, dict[str, float]]:
        """One pass over a split, unless these very units were removed before, by whatever method."""
        key = None
        if isinstance(walk, CutWalk) and phase == ONE_SHOT:
            key = (split, frozenset(walk.removed_units(stop.removed)))
            if key in self.measured:
                return self.measured[key], {"evaluating": 0.0}
        before = walk.scorer.seconds if isinstance(walk, CutWalk) else 0.0
        start = time.perf_counter()
        if phase == ONE_SHOT:
            predictions = walk.predict(pruned, stop.removed, split)
        else:
            predictions = self.session.predict(pruned[0], split)
        scored = walk.scorer.seconds - before if isinstance(walk, CutWalk) else 0.0  # counts for the next row
        seconds = {"evaluating": time.perf_counter() - start - scored}
        found = {
            "metrics": self.session.metrics(predictions, split),
            "predictions": pack(predictions.values, self.session.task.kind),
            "n": len(predictions.losses),
            "cost": cost_of(self.session, pruned[0]),
        }
        if key is not None:
            self.measured[key] = found
        return found, seconds

    # ------------------------------------------------------------------ rows

    def _has(self, label: str, phase: str, trial: int | None, removed: float, split: str) -> bool:
        return (label, phase, trial, removed, split) in self.known

    def _remember_measured(self) -> None:
        orders: dict[Any, list[Unit]] = {}
        names = ("metrics", "predictions", "n", "cost")
        for row in self.rows:
            if row["phase"] == ONE_SHOT and self.session.target != "weights":
                order = orders.setdefault((row["method"], row["trial"]), [])
                order += [(layer, unit) for layer, unit in row["order"] or ()]
                gone = frozenset(order[: round(row["removed"] * self.session.units)])
                self.measured[row["split"], gone] = {name: row[name] for name in names}

    def _expected(self, methods: Sequence[Method], test: bool) -> int:
        """How many rows there will be; with steps of its own a method makes fewer."""
        trained, total = len(self._trained_levels()) if self.recovery else 0, 2 + 2 * bool(self.recovery)
        for method in methods:
            levels = (
                self.remove
                if self.session.target == "weights"
                else unit_levels(self.session, method, self.remove)
            )
            one = 0 if method.learned else len(levels) + test + 2 * trained
            gradual = 2 * trained if self.recovery and self.recovery.gradual(method) else 0
            total += len(method.numbers()) * (one + gradual)
        return total

    def _report(self, row: Row) -> None:
        metric = self.session.task.metric
        done = sum(known["method"] in self.labels for known in self.known.values())
        trial = "" if row["trial"] is None else f" trial {row['trial'] + 1}"
        removed = f"{100 * row['removed']:.3g} % removed"
        message = f"{row['method']}{trial} {row['phase']}, {removed}: {metric} {row['metrics'][metric]:.4g}"
        self.on_progress(Progress("comparing", done, self.total, message))


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    try:
        return tuple(row[name] for name in ("method", "phase", "trial", "removed", "split"))
    except KeyError as error:
        raise FormatError(f"a row of the run has no {error}: it was written by another version") from None


def _of(row: Mapping[str, Any], label: str, trial: int | None) -> bool:
    return (row["method"], row["trial"], row["phase"], row["split"]) == (label, trial, ONE_SHOT, VALIDATION)


def cost_of(session: Session, model: Any) -> dict[str, Any]:
    """What a row records of a model's size: units and MACs, or zeros and bytes."""
    if session.target == "weights":
        return sparse_cost(model, session.sites)
    found = cost(model)
    return {"units": getattr(found, session.target), "parameters": found.parameters, "macs": found.macs}


def order_of(rows: Iterable[Row], label: str, trial: int | None = None) -> list[Unit]:
    """Return the units that a method (in its first trial) has removed, in their order."""
    own = [row for row in rows if _of({**row, "trial": row["trial"] or 0}, label, trial or 0)]
    return [(layer, unit) for row in own for layer, unit in row["order"] or ()]


def mask_at(session: Session, folder: Path, label: str, removed: float) -> Mask:
    """Return the mask of a method with a fraction of the units removed, from the rows of a run."""
    order, k = order_of(read_rows(folder / ROWS), label), round(removed * session.units)
    if k > len(order):
        raise UnsupportedError(f"{label} removed {len(order)} units in {folder}, not {k}")
    return mask_without(session.sites, order[:k])
