"""The study: each contender at each sparsity, at once, after a training under the mask, and on a schedule.

Its folder holds `run.json` and `rows.jsonl` as every run does. A study that was killed goes on where it was:
a row depends only on the contender, the level and the way, so none is made twice. Scores are computed once
for all levels of a contender.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import criteria
from ..analysis.sparsity import AT_ONCE, BASE, GRADUAL, RECOVERED, STUDY, read_study
from ..core.errors import EspalierError, differences
from ..core.mask import Scores
from ..engine.activations import check_readable
from ..evaluation.predictions import packed
from ..evaluation.sparse_size import weighed
from ..io.json_file import read_json
from ..io.rows import Row, Rows, alone_in, read_rows
from ..pruning.cut import zero
from ..pruning.repair import compensate
from ..training.held_mask import zeros_of
from .manifest import NAME, begin, check_folder, warn_of_guessing
from .session import Bench
from .study_levels import check_levels
from .study_method import Contender, check_trained
from .study_training import Training

VALIDATION, TEST = "validation", "test"


@dataclass(frozen=True)
class Progress:
    """What a watcher is told after every row."""

    done: int
    total: int
    row: Row


Watcher = Callable[[Progress], None]


def study(
    bench: Bench,
    contenders: Sequence[Contender],
    levels: Sequence[float],
    folder: Path,
    *,
    training: Training | None = None,
    within: float = 0.01,
    seed: int = 0,
    watch: Watcher | None = None,
) -> Path:
    """Measure everything on validation, and on test the base and what the rule chooses. Returns the folder.

    Trained models are tested at once, because they are not kept; a report still speaks of the chosen only.
    """
    _check(bench, contenders, training)
    check_levels(bench.sites, contenders, levels)
    check_folder(folder)
    with alone_in(folder):
        told = _trained_before(folder, training, contenders)
        asked: dict[str, Any] = {"within": within, "seed": seed, "training": told}
        if bench.also:
            asked["also"] = list(bench.also)
        begin(bench, contenders, folder, study=STUDY, **asked)
        run = _Run(bench, folder, levels, training, seed, watch, contenders)
        run.base()
        warn_of_guessing(bench, run.rows)
        for one in contenders:
            run.take(one)
            if not one.learned:
                run.test_chosen(one, within)
    return folder


def _check(bench: Bench, contenders: Sequence[Contender], training: Training | None) -> None:
    """Before the first hour, not after it."""
    if bench.target != "weights":
        raise EspalierError(f"a sparsity study is of single weights, not of {bench.target}")
    for one in contenders:
        if one.learned:
            check_trained(one.label, training is not None)
        if getattr(criteria.load(one.criterion), "inputs", False):
            check_readable(bench.sites, bench.calibration_of(one.criterion), one.label)


def _trained_before(
    folder: Path, training: Training | None, contenders: Sequence[Contender]
) -> dict[str, Any] | None:
    """How this folder's rows were trained: the same now, or not said."""
    path = folder / NAME
    before = (read_json(path).get("training") if path.exists() else None) or {}
    if training is None:
        return before or None
    now = training.settings()
    held = {name: before[name] for name in now if name in before}
    rows = read_rows(folder / "rows.jsonl") if path.exists() else []
    if held and held != now and any(row["way"] != AT_ONCE for row in rows):
        raise _another(folder, held, now)
    slow = bool(training.schedule) or any(one.learned for one in contenders)
    if not slow:
        return before | now
    # The rows know best: how weights go may be said anew as long as none has gone that way.
    descent = training.descent()
    for row in rows:
        if row["way"] == GRADUAL:
            made = {name: row[name] for name in descent if name in row}
            asked = {name: descent[name] for name in made}
            if made != asked:
                raise _another(folder, made, asked)
    return before | now | descent


def _another(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> EspalierError:
    return EspalierError(
        f"{folder} holds a study with another training ({differences(before, now)}). Another training needs "
        "another folder: choose one with -o"
    )


def _wanted(
    contenders: Sequence[Contender], levels: Sequence[float], training: Training | None
) -> Iterator[tuple[str, str, float]]:
    """What is measured on validation in all, made before or not."""
    yield BASE, AT_ONCE, 0.0
    if training is not None:
        yield BASE, RECOVERED, 0.0
    for one in contenders:
        ways = [] if one.learned else [AT_ONCE]
        if training is not None:
            ways += [] if one.learned else [RECOVERED]
            ways += [GRADUAL] if one.learned or training.schedule else []
        yield from ((one.label, way, level) for way in ways for level in levels)


class _Run:
    """The rows so far, and the weights to come back to."""

    def __init__(
        self,
        bench: Bench,
        folder: Path,
        levels: Sequence[float],
        training: Training | None,
        seed: int,
        watch: Watcher | None,
        contenders: Sequence[Contender],
    ):
        self.bench, self.folder, self.levels = bench, folder, list(levels)
        self.training, self.seed, self.watch = training, seed, watch
        self.rows = Rows(folder / "rows.jsonl")
        self.living = zeros_of(bench.sites)  # a model may come sparse: what was zero stays it
        self.dense = {name: t.detach().clone() for name, t in bench.model.state_dict().items()}
        self.wanted = set(_wanted(contenders, self.levels, training))
        self.spent: dict[str, float] = {}

    def base(self) -> None:
        """The dense model, and the dense model after the same training: more data alone may help it."""
        for part in (VALIDATION, TEST):
            if not self._has(BASE, AT_ONCE, 0.0, part):
                self._add(BASE, AT_ONCE, 0.0, part)
        if self.training is not None and not self._has(BASE, RECOVERED, 0.0, TEST):
            self._trained(BASE, RECOVERED, 0.0, self.training.recover)

    def take(self, one: Contender) -> None:
        """All levels of a contender, lowest first."""
        scores: Scores | None = None
        for level in self.levels:
            at_once = not one.learned and not self._has(one.label, AT_ONCE, level, VALIDATION)
            after = (
                self.training is not None
                and not one.learned
                and not self._has(one.label, RECOVERED, level, TEST)
            )
            if at_once or after:
                scores = self._zero(one, level, scores)
                if at_once:
                    self._add(one.label, AT_ONCE, level, VALIDATION)
                if after and self.training is not None:
                    self._trained(one.label, RECOVERED, level, self.training.recover)
                self._back()
            slow = self.training is not None and (one.learned or self.training.schedule)
            if slow and not self._has(one.label, GRADUAL, level, TEST):
                self._descended(one, level)

    def _descended(self, one: Contender, level: float) -> None:
        training = self.training
        assert training is not None
        self._trained(
            one.label,
            GRADUAL,
            level,
            lambda bench, seed: training.descend(bench, one, level, seed),
            **training.descent(),
        )

    def test_chosen(self, one: Contender, within: float) -> None:
        """Of what is made at once, the rule's choice is made again and tested."""
        knee = read_study(self.folder).line(one.label, AT_ONCE).knee(within)
        if knee and not self._has(one.label, AT_ONCE, knee, TEST):
            self._zero(one, knee, None)
            self._add(one.label, AT_ONCE, knee, TEST)
            self._back()

    def _zero(self, one: Contender, level: float, scores: Scores | None) -> Scores | None:
        """Close the lowest; returns the scores, for the next level."""
        bench, start = self.bench, time.perf_counter()
        batches = bench.calibration_of(one.criterion)
        if one.repairs:  # each level anew: what is moved depends on how much goes
            compensate(bench.model, bench.sites, batches, 1 - level, mask=self.living, **one.options)
            self.spent["repairing"] = time.perf_counter() - start
            return scores
        if scores is None:
            with bench.arithmetic():
                scores = one.scores(bench.model, bench.sites, batches)
            self.spent["scoring"] = time.perf_counter() - start
        start = time.perf_counter()
        zero(bench.model, one.choose(scores, 1 - level, mask=self.living))
        self.spent["choosing"] = time.perf_counter() - start
        return scores

    def _trained(self, label: str, way: str, level: float, run: Any, **told: Any) -> None:
        """Both parts are measured, test last: only with it the training counts as done."""
        start = time.perf_counter()
        run(self.bench, self.seed)
        self.spent["training"] = time.perf_counter() - start
        for part in (VALIDATION, TEST):
            if not self._has(label, way, level, part):
                self._add(label, way, level, part, **told)
        self._back()

    def _back(self) -> None:
        with torch.no_grad():
            self.bench.model.load_state_dict(self.dense)

    def _has(self, label: str, way: str, level: float, part: str) -> bool:
        wanted = (label, way, level, part)
        return any((r["strategy"], r["way"], r["level"], r["split"]) == wanted for r in self.rows)

    def _add(self, label: str, way: str, level: float, part: str, **told: Any) -> None:
        bench, start = self.bench, time.perf_counter()
        answers = bench.evaluate(bench.model, part)
        self.spent["evaluating"] = time.perf_counter() - start
        self.rows.add(
            {
                "strategy": label,
                "way": way,
                "level": level,
                "split": part,
                "metrics": bench.metrics(answers, part),
                "predictions": packed(answers.predictions, bench.task.kind),
                "n": len(answers.losses),
                **weighed(bench.model, bench.sites),
                **told,
                "seconds": {name: round(s, 4) for name, s in self.spent.items()},
                "seed": self.seed,
            }
        )
        self.spent = {}
        if self.watch:
            done = self.wanted & {
                (r["strategy"], r["way"], r["level"]) for r in self.rows if r["split"] == VALIDATION
            }
            self.watch(Progress(len(done), len(self.wanted), self.rows.rows[-1]))
