"""The experiment: strategies remove units one after the other, every level is measured, every row is kept.

A run folder holds `run.json` (what was asked), `rows.jsonl` (what was measured) and `scores.jsonl` (scores of
the unpruned model). A run that was killed goes on where it was: a row depends only on what is removed, not on
the process that measures it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import criteria
from ..core import Mask, Scores
from ..errors import EspalierError
from ..evaluation import Answers, packed
from ..measure import cost
from ..pruning import prune
from ..results import read_run
from ..rows import Row, Rows, alone_in, read_rows
from ..selection import lowest
from ..shrinking import Shrinking
from ..workbench import Bench
from .replay import Replay
from .runfile import begin, warn_of_guessing
from .strategies import Strategy, check_keep

Unit = tuple[int, int]  # layer and head, in the numbering of run.json
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
    units = sum(site.units for site in bench.sites)
    if round(keep * units) >= units:
        raise EspalierError(f"keep {keep} of {units} units leaves all of them: nothing to remove")
    for strategy in strategies:  # before the first hour, not after it
        kinds = criteria.load(strategy.criterion).kinds
        if bench.kind not in kinds:
            raise EspalierError(f"{strategy.label} scores {' and '.join(kinds)}, not {bench.kind}")
    with alone_in(folder):
        begin(bench, strategies, folder, keep=keep, within=within, seed=seed)
        run = _Run(bench, folder, keep, seed, all_scores, watch)
        run.plan_of_work(strategies, tested)
        run.measure_base(VALIDATION)
        warn_of_guessing(bench, run.rows)
        for strategy in strategies:
            for trial in _trials(strategy):
                run.walk(strategy, trial)
        if tested:
            run.measure_base(TEST)
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
    return [
        (layer, head) for r in own if (r["trial"] or 0) == (trial or 0) for layer, head in r["cut"]
    ]


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
        self.bench, self.seed, self.all_scores, self.watch = bench, seed, all_scores, watch
        self.units = sum(site.units for site in bench.sites)
        self.last = self.units - round(keep * self.units)
        self.rest = Shrinking(bench.model, bench.sites)
        self.replay = Replay()
        self.rows = Rows(folder / "rows.jsonl")
        self.base_scores = Rows(folder / "scores.jsonl")
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
        """How many units are gone at each measurement."""
        usual = 1 if strategy.trials is None else max(1, self.units // LEVELS)
        every = strategy.every or max(usual, strategy.step if strategy.rescore else 1)
        return [*range(every, self.last, every), self.last] if self.last else []

    def measure_base(self, part: str) -> None:
        if not self._rows_of("base", None, part):
            self._add("base", None, [], part, [], scoring=0.0, scores=None)

    def walk(self, strategy: Strategy, trial: int | None) -> None:
        """One order of removal, from where its rows end down to the last level."""
        gone = removed(self.rows, strategy.label, trial)
        levels = [k for k in self.levels(strategy) if k > len(gone)]
        if not levels:
            return
        stops = levels
        if strategy.rescore:
            stops = sorted({*range(strategy.step, self.last, strategy.step), self.last})
        stops = [k for k in stops if k > len(gone)]
        scoring = _Scoring(self, strategy, trial, gone if strategy.rescore else [])
        cut: list[Unit] = []
        for mask, k in zip(
            prune(
                self.bench.model,
                self.bench.sites,
                scoring,
                self.bench.calibration,
                [(self.units - k) / self.units for k in stops],
                choose=scoring.choose,
                reverse=strategy.reverse,
                rescore=strategy.rescore,
                start=_without(self.bench.sites, gone),
                rest=self.rest,
            ),
            stops,
        ):
            fresh = scoring.closed(mask, set(gone))
            gone += fresh
            cut += fresh
            if k in levels:
                self._add(
                    strategy.label, trial, gone, VALIDATION, cut, scoring.spent(), scoring.scores
                )
                cut = []

    def test(self, strategy: Strategy, trial: int | None, k: int) -> None:
        """Measure one point on the part that nothing was chosen by."""
        if any(row["k"] == k for row in self._rows_of(strategy.label, trial, TEST)):
            return
        gone = removed(self.rows, strategy.label, trial)[:k]
        self._add(strategy.label, trial, gone, TEST, [], scoring=0.0, scores=None)

    def _add(
        self,
        label: str,
        trial: int | None,
        gone: Sequence[Unit],
        part: str,
        cut: Sequence[Unit],
        scoring: float,
        scores: Scores | None,
    ) -> None:
        layer, head = gone[-1] if gone else (None, None)
        row: Row = {
            "strategy": label,
            "trial": trial,
            "k": len(gone),
            "layer": layer,
            "head": head,
            "score": None if scores is None else self._score(scores, gone[-1]),
            "cut": [list(unit) for unit in cut],
            "split": part,
            **self._measured(gone, part),
            "seed": self.seed if trial is None else self.seed + trial,
        }
        row["seconds"]["scoring"] = round(scoring, 4)
        if self.all_scores and scores is not None:
            row["scores"] = [as_json(scores[site.name]) for site in self.bench.sites]
        self.rows.add(row)
        self.done += 1
        if self.watch:
            self.watch(Progress(label, trial, self.done, self.total, row))

    def _measured(self, gone: Sequence[Unit], part: str) -> Row:
        """One pass over a part, unless these very units were removed before, by whatever strategy."""
        key = (part, frozenset(gone))
        start = time.perf_counter()
        if key not in self.seen:
            with self.rest.at(_without(self.bench.sites, gone)) as (model, sites):
                answers = self._answers(model, sites, gone, part)
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
        seconds = {"evaluating": round(time.perf_counter() - start, 4)}
        return {**{name: known[name] for name in names}, "seconds": seconds}

    def _answers(
        self, model: Any, sites: Sequence[Any], gone: Sequence[Unit], part: str
    ) -> Answers:
        """Test parts are measured once or twice, so only validation is worth remembering."""
        if part != VALIDATION or any(site.uses > 1 for site in sites):
            return self.bench.evaluate(model, part)
        blocks = list(dict.fromkeys(site.block for site in sites))
        state = [
            frozenset(unit for unit in gone if sites[unit[0]].block is block) for block in blocks
        ]
        with self.replay.over(blocks, state) as now:
            return self.bench.evaluate(model, part, now.begin)

    def _rows_of(self, label: str, trial: int | None, part: str) -> list[Row]:
        wanted = (label, trial, part)
        return [r for r in self.rows if (r["strategy"], r["trial"], r["split"]) == wanted]

    def _score(self, scores: Scores, unit: Unit) -> float | None:
        value = float(scores[self.bench.sites[unit[0]].name][unit[1]])
        return value if abs(value) < float("inf") else None


class _Scoring:
    """A criterion that remembers: the unpruned model is scored once for all who share its scores."""

    def __init__(self, run: _Run, strategy: Strategy, trial: int | None, gone: list[Unit]):
        self.run, self.strategy, self.trial = run, strategy, trial
        self.gone = gone  # grows as the walk goes on: when it is empty, the whole model is scored
        self.criterion = criteria.load(strategy.criterion)
        self.options = dict(strategy.options)
        if trial is not None:
            self.options["seed"] = self.options.get("seed", run.seed) + trial
        self.scores: Scores | None = None  # as the criterion gave them, whatever the direction
        self.seconds = 0.0

    def __call__(self, model: Any, sites: Sequence[Any], _: Any) -> Scores:
        start = time.perf_counter()
        if not self.gone and self.trial is None:
            found = self._of_the_whole(model, sites)
        else:
            found = self._scored(model, sites)
        self.seconds += time.perf_counter() - start
        return found

    def _scored(self, model: Any, sites: Sequence[Any]) -> Scores:
        batches = self.run.bench.calibration_of(self.strategy.criterion)
        return self.criterion(model, sites, batches, **self.options)

    def _of_the_whole(self, model: Any, sites: Sequence[Any]) -> Scores:
        key = self.strategy.key
        kept = next((row for row in self.run.base_scores if row["key"] == key), None)
        if kept is None:
            found = self._scored(model, sites)
            kept = {
                "key": key,
                "strategy": self.strategy.label,
                "criterion": self.strategy.criterion,
                "k": 0,
                "scores": [as_json(found[site.name]) for site in sites],
            }
            self.run.base_scores.add(kept)
        return Scores(
            {
                site.name: torch.tensor(
                    [-torch.inf if v is None else v for v in values], dtype=torch.float64
                )
                for site, values in zip(sites, kept["scores"])
            }
        )

    def choose(self, scores: Scores, keep: float, *, mask: Mask) -> Mask:
        self.ranked = scores
        sign = -1 if self.strategy.reverse else 1
        self.scores = Scores({name: sign * value for name, value in scores.items()})
        return lowest(scores, keep, mask=mask)

    def closed(self, mask: Mask, gone: set[Unit]) -> list[Unit]:
        """The units that this mask closes, in the order in which they would go one by one."""
        fresh = [
            (layer, int(head))
            for layer, site in enumerate(self.run.bench.sites)
            for head in (~mask[site.name]).nonzero().flatten()
            if (layer, int(head)) not in gone
        ]
        names = [site.name for site in self.run.bench.sites]
        return sorted(fresh, key=lambda unit: float(self.ranked[names[unit[0]]][unit[1]]))

    def spent(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def as_json(values: torch.Tensor) -> list[float | None]:
    """As JSON has it: no gradient is null, one without bound the largest number there is."""
    most = torch.finfo(torch.float64).max
    return [None if v == -float("inf") else min(v, most) for v in values.tolist()]
