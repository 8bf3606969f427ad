"""The experiment: strategies remove units one after the other, every level is measured, every row is kept.

A run folder holds `run.json` (what was asked), `rows.jsonl` (what was measured) and `scores.jsonl` (scores of
the unpruned model). A run that was killed goes on where it was: a row depends only on what is removed, not on
the process that measures it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import criteria
from ..analysis.results import read_run
from ..core import distributed
from ..core.errors import EspalierError
from ..core.mask import Mask, Scores
from ..engine.cache import Replay
from ..evaluation.cost import cost
from ..evaluation.predictions import Answers, packed
from ..io.rows import Row, Rows, alone_in, read_rows
from ..pruning.loop import prune
from ..pruning.working_copy import WorkingCopy
from ..selection.pace import Unit
from .manifest import begin, warn_of_guessing
from .method import AUTO, Strategy, check_keep
from .scoring import Scoring, as_json
from .session import Bench

VALIDATION, TEST = "validation", "test"
LEVELS = 24  # of a random trial, unless it is told every how many units


@dataclass(frozen=True)
class Progress:
    """What a watcher is told after every row."""

    label: str
    trial: int | None
    done: int
    total: int
    row: Row


Watcher = Callable[[Progress], None]


def compare(
    bench: Bench,
    strategies: Sequence[Strategy],
    folder: Path,
    *,
    keep: float = 0.0,
    within: float | None = 0.01,
    seed: int = 0,
    all_scores: bool = False,
    tested: bool = True,
    watch: Watcher | None = None,
) -> Path:
    """Run every strategy down to `keep`, then test the base and each chosen point. Returns the folder.

    The chosen point is the end of the longest unbroken stretch `within` so much of the base on validation;
    with None, the last level.
    """
    check_keep(keep)
    if bench.target == "weights":
        raise EspalierError(
            "heads and neurons are removed one after the other; single weights are pruned to a fraction: "
            "espalier prune MODEL --task TASK --what weights --keep 0.5 -o FOLDER"
        )
    units = sum(site.units for site in bench.sites)
    if round(keep * units) >= units:
        raise EspalierError(f"keep {keep} of {units} units leaves all of them: nothing to remove")
    for strategy in strategies:  # before the first hour, not after it
        kinds = criteria.load(strategy.criterion).targets
        if bench.target not in kinds:
            raise EspalierError(f"{strategy.label} scores {' and '.join(kinds)}, not {bench.target}")
    first = distributed.rank() == 0  # it alone writes; the others walk along and compute their share
    with alone_in(folder) if first else nullcontext():
        if first:
            begin(bench, strategies, folder, keep=keep, within=within, seed=seed)
        distributed.barrier()
        run = _Run(bench, folder, keep, seed, all_scores, watch)
        run.plan_of_work(strategies, tested)
        run.measure_base(VALIDATION)
        warn_of_guessing(bench, run.rows)
        for strategy in strategies:
            for trial in _trials(strategy):
                run.walk(strategy, trial)
        if tested:
            run.measure_base(TEST)
            distributed.barrier()  # for the first, until its last row is on disk
            found = read_run(folder)
            for strategy in strategies:
                curve = found.curve(strategy.label)
                chosen = curve.removed[-1] if within is None else curve.unbroken(within)
                for trial in _trials(strategy):
                    run.test(strategy, trial, chosen)
    return folder


def _trials(strategy: Strategy) -> list[int | None]:
    return [None] if strategy.trials is None else list(range(strategy.trials))


def mask_at(bench: Bench, folder: Path, label: str, k: int) -> Mask:
    """The mask of a strategy (of its first trial) with `k` units gone, from the rows of a run."""
    gone = removed(read_rows(folder / "rows.jsonl"), label)
    if k > len(gone):
        raise EspalierError(f"{label} removed {len(gone)} units in {folder}, not {k}")
    return _without(bench.sites, gone[:k])


def removed(rows: Iterable[Row], label: str, trial: int | None = None) -> list[Unit]:
    """The units that a strategy has removed so far, in their order."""
    own = [r for r in rows if r["strategy"] == label and r["split"] == VALIDATION]
    return [(layer, head) for r in own if (r["trial"] or 0) == (trial or 0) for layer, head in r["cut"]]


def _without(sites: Sequence[Any], gone: Sequence[Unit]) -> Mask:
    units: dict[int | str, list[int]] = {}
    for layer, head in gone:
        units.setdefault(layer, []).append(head)
    return Mask.without(sites, units)


class _Run:
    """The state of one run: the model as it shrinks, and the rows so far."""

    def __init__(
        self,
        bench: Bench,
        folder: Path,
        keep: float,
        seed: int,
        all_scores: bool,
        watch: Watcher | None,
    ):
        self.bench, self.seed, self.all_scores = bench, seed, all_scores
        first = distributed.rank() == 0
        self.watch = watch if first else None
        self.units = sum(site.units for site in bench.sites)
        self.last = self.units - round(keep * self.units)
        self.rest = WorkingCopy(bench.model, bench.sites)
        self.replay = Replay(bench.cache // 2)
        self.rows = Rows(folder / "rows.jsonl", ours=first)
        self.base_scores = Rows(folder / "scores.jsonl", ours=first)
        distributed.barrier()  # until all have read what was there
        self.seen: dict[tuple[str, frozenset[Unit]], Row] = {}
        self.total = self.done = 0
        walked: dict[tuple[str, Any], list[Unit]] = {}
        for row in self.rows:
            gone = walked.setdefault((row["strategy"], row["trial"]), [])
            if row["split"] == VALIDATION:
                gone += [(layer, head) for layer, head in row["cut"]]
            self.seen[row["split"], frozenset(gone[: row["k"]])] = row

    def plan_of_work(self, strategies: Sequence[Strategy], tested: bool) -> None:
        """How many rows there will be, and how many there are."""
        each = [len(_trials(s)) * (len(self.levels(s)) + tested) for s in strategies]
        self.total = 1 + tested + sum(each)
        asked = {s.label for s in strategies} | {"base"}
        self.done = sum(row["strategy"] in asked for row in self.rows)

    def levels(self, strategy: Strategy) -> list[int]:
        """How many units are gone at each measurement; with steps of their own, the most there can be."""
        usual = 1 if strategy.trials is None else max(1, self.units // LEVELS)
        step = strategy.step if strategy.rescore and strategy.step != AUTO else 1
        every = strategy.every or max(usual, int(step))
        return [*range(every, self.last, every), self.last] if self.last else []

    def measure_base(self, part: str) -> None:
        if not self._rows_of("base", None, part):
            self._add("base", None, [], part, [])

    def walk(self, strategy: Strategy, trial: int | None) -> None:
        """One order of removal, from where its rows end down to the last level."""
        gone = removed(self.rows, strategy.label, trial)
        if len(gone) >= self.last:
            return
        own = self._rows_of(strategy.label, trial, VALIDATION)
        scoring = Scoring(
            self.bench,
            strategy,
            self.base_scores,
            self.seed,
            trial,
            gone if strategy.rescore else [],
            own[-1].get("pace") if own else None,
        )
        levels, cut = set(self.levels(strategy)), list[Unit]()
        for mask in prune(
            self.bench.model,
            self.bench.sites,
            scoring,
            self.bench.calibration,
            self._stops(strategy, gone),
            choose=scoring.choose,
            reverse=strategy.reverse,
            rescore=strategy.rescore,
            start=_without(self.bench.sites, gone),
            rest=self.rest,
        ):
            fresh = scoring.closed(mask, set(gone))
            gone += fresh
            cut += fresh
            if len(gone) in levels or scoring.pace:
                self._add(strategy.label, trial, gone, VALIDATION, cut, scoring)
                cut = []

    def _stops(self, strategy: Strategy, gone: list[Unit]) -> Iterator[float]:
        """The fractions to keep after each step; `gone` grows meanwhile."""
        stops = self.levels(strategy)
        if strategy.step == AUTO:
            stops = [self.last]  # the pace decides how much of the way is made at once
        elif strategy.rescore:
            stops = sorted({*range(int(strategy.step), self.last, int(strategy.step)), self.last})
        while len(gone) < self.last:
            yield (self.units - next(k for k in stops if k > len(gone))) / self.units

    def test(self, strategy: Strategy, trial: int | None, k: int) -> None:
        """Measure one point on the part that nothing was chosen by."""
        if any(row["k"] == k for row in self._rows_of(strategy.label, trial, TEST)):
            return
        gone = removed(self.rows, strategy.label, trial)[:k]
        self._add(strategy.label, trial, gone, TEST, [])

    def _add(
        self,
        label: str,
        trial: int | None,
        gone: Sequence[Unit],
        part: str,
        cut: Sequence[Unit],
        scoring: Scoring | None = None,
    ) -> None:
        layer, head = gone[-1] if gone else (None, None)
        scores, spent = (scoring.scores, scoring.spent()) if scoring else (None, 0.0)
        row: Row = {
            "strategy": label,
            "trial": trial,
            "k": len(gone),
            "layer": layer,
            "head": head,
            "score": None if scores is None else self._score(scores, gone[-1]),
            "cut": [list(unit) for unit in cut],
            "split": part,
            **self._measured(gone, part, scoring),
            "seed": self.seed if trial is None else self.seed + trial,
        }
        row["seconds"]["scoring"] = round(spent, 4)
        if scoring and scoring.pace:
            row["pace"] = scoring.pace.to_dict()
        if self.all_scores and scores is not None:
            row["scores"] = [as_json(scores[site.name]) for site in self.bench.sites]
        self.rows.add(row)
        self.done += 1
        if self.watch:
            self.watch(Progress(label, trial, self.done, self.total, row))

    def _measured(self, gone: Sequence[Unit], part: str, scoring: Scoring | None) -> Row:
        """One pass over a part, unless these very units were removed before, by whatever strategy."""
        key = (part, frozenset(gone))
        before = scoring.seconds if scoring else 0.0
        start = time.perf_counter()
        if key not in self.seen:
            with self.rest.at(_without(self.bench.sites, gone)) as (model, sites):
                answers = self._answers(model, sites, gone, part, scoring)
                spent = cost(model)
            self.seen[key] = {
                "metrics": self.bench.metrics(answers, part),
                "predictions": packed(answers.predictions, self.bench.task.kind),
                "n": len(answers.losses),
                "units": self.units - len(gone),
                "parameters": spent.parameters,
                "macs": spent.macs,
            }
        known = self.seen[key]
        names = ("metrics", "predictions", "n", "units", "parameters", "macs")
        scored = scoring.seconds - before if scoring else 0.0  # belongs to the row after this one
        seconds = {"evaluating": round(time.perf_counter() - start - scored, 4)}
        return {**{name: known[name] for name in names}, "seconds": seconds}

    def _answers(
        self,
        model: Any,
        sites: Sequence[Any],
        gone: Sequence[Unit],
        part: str,
        scoring: Scoring | None,
    ) -> Answers:
        if scoring and part == VALIDATION and self._scored_next(scoring, gone):
            heard = scoring.answers(model, sites)
            if heard is not None:
                return heard
        # Test parts are measured once or twice, so only validation is worth remembering.
        if part != VALIDATION or any(site.uses > 1 for site in sites):
            return self.bench.evaluate(model, part)
        blocks = list(dict.fromkeys(site.block for site in sites))
        state = [frozenset(unit for unit in gone if sites[unit[0]].block is block) for block in blocks]
        with self.replay.over(blocks, state) as now:
            return self.bench.evaluate(model, part, now.begin)

    def _scored_next(self, scoring: Scoring, gone: Sequence[Unit]) -> bool:
        """Whether this very model is about to be scored on the very examples it is measured on."""
        strategy = scoring.strategy
        again = strategy.rescore and len(gone) < self.last
        return again and self.bench.scored_is_measured(strategy.criterion)

    def _rows_of(self, label: str, trial: int | None, part: str) -> list[Row]:
        wanted = (label, trial, part)
        return [r for r in self.rows if (r["strategy"], r["trial"], r["split"]) == wanted]

    def _score(self, scores: Scores, unit: Unit) -> float | None:
        value = float(scores[self.bench.sites[unit[0]].name][unit[1]])
        return value if abs(value) < float("inf") else None
