"""Prune units or whole layers to a budget: chosen by score per cost, repaired, measured, saved."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ..analysis.curves import Tolerance
from ..architectures.sites import STACKED
from ..core.errors import UnsupportedError
from ..core.mask import Mask
from ..core.progress import OnProgress, Progress, ignore
from ..core.terminal import by_template, log, logged_once
from ..evaluation.latency import speedup_of, time_rounds
from ..pruning.path import REPAIRED_STAGE, STAGE, BudgetPath
from ..pruning.repair import NONE, repair
from ..pruning.sublayers import SublayerPath
from ..selection.budget import LEAST_HEADS
from .budget import (
    ACCURATE,
    Budget,
    Currency,
    check_room,
    count_cost,
    count_currency,
    search_units,
    time_currency,
)
from .budget_choice import STAGES, SUBLAYERS, make_path
from .budget_estimate import describe_estimate, estimate
from .budget_facts import finish_model
from .budget_record import BudgetRecord, Finished, identify
from .budget_tolerance import search_tolerance
from .latency_table import LatencyTable, Shape, latency_table
from .method import Method
from .reference import Reference
from .repair import repair_cut
from .session import Session

ROUNDS, MOST_ROUNDS, SECONDS = 21, 200, 1.5  # of a measurement: as many as fit into its seconds
STEPS = 4  # cuts that are timed to meet a speed


@dataclass(frozen=True)
class BudgetOptions:
    """How a budget is met: repair, kernels' favourite multiple, the shape that is timed."""

    repair: str = "refit"
    multiple: int = 8
    stage: float | None = None  # the share that is left between two scorings
    repair_stages: bool = True  # before each is scored
    batch_size: int = 1  # of the passes that are timed
    tolerance: Tolerance | None = None  # instead of a budget
    overwrite: bool = False  # another model in the folder
    rearrange: bool = False  # swap units within layers, so that of two that do the same one is kept
    search: str = STAGES  # or sublayers: chosen and repaired one by one from the bottom
    least_heads: float = LEAST_HEADS  # of the heads that a cut in proportion would keep
    lookahead: int = 1  # masks of a stage whose predictions are compared; 1: the scores decide


@dataclass
class Pruned:
    """A cut model on the way to its facts."""

    model: Any
    mask: Mask
    asked: str
    achieved: float
    met: bool
    times: torch.Tensor | None = None  # [2, rounds]: seconds of the unpruned and of the cut model
    repaired: list[Any] = field(default_factory=list)

    def nearness(self, budget: Budget) -> tuple[bool, float]:
        """Sort by whether the budget is met, then by how near what was reached is."""
        return self.met, -abs(self.achieved / budget.value - 1)


class BudgetRun:
    """One model, one task, one method: any number of budgets from one scoring."""

    def __init__(
        self, session: Session, method: Method, options: BudgetOptions, on_progress: OnProgress = ignore
    ):
        self.session, self.method, self.options, self.on_progress = session, method, options, on_progress
        self.sites: list[Any] = [site for site in session.sites if not site.uncuttable]
        if not self.sites:
            why = next((f": {site.uncuttable}" for site in session.sites), "")
            raise UnsupportedError(f"{session.name} has no {session.target} that can be cut{why}")
        if len(self.sites) < len(session.sites):
            left = {site.target for site in session.sites if site.uncuttable}
            log.warning("%s of %s cannot be cut and stay", " and ".join(sorted(left)), session.name)
        labels = [batch["labels"] for batch in session.calibration if "labels" in batch]
        if session.task.kind == "classification" and labels and len(torch.cat(labels).unique()) < 2:
            log.warning("all calibration examples are of one class: no other is seen, draw more of them")
        self.shape = Shape(options.batch_size, session.max_length)
        self.logged = set[str]()  # of repairs
        self.seconds = {"choosing": 0.0, "repairing": 0.0, "measuring": 0.0}

    @cached_property
    def table(self) -> LatencyTable:
        self.on_progress(Progress("timing layers"))
        with self._clock("measuring"):
            return latency_table(self.session.model, self.sites, self.shape)

    def currency(self, kind: str) -> Currency:
        """Return what a kind of budget counts."""
        if kind in ("speedup", "latency"):
            return time_currency(self.table, self.sites)
        return count_currency(self.session.model, self.sites, kind, self.session.stored.itemsize)

    def asked(self, budget: Budget, currency: Currency) -> float:
        """Return the budget in what its currency counts."""
        if budget.kind == "speedup":
            return currency.whole / budget.value
        return budget.value * (currency.whole if budget.kind in ("macs", "params") else 1)

    def path(self, currency: Currency) -> BudgetPath | SublayerPath:
        """Return the way to masks, on which units are scored as budgets need it."""
        return make_path(self, currency)

    @property
    def one_by_one(self) -> int:
        """How many blocks or sublayers there are, if it is these that go, one by one."""
        return sum(site.units for site in self.sites if site.target in STACKED)

    @property
    def stage(self) -> float:
        """The share that is left between two scorings."""
        if self.one_by_one:
            return 1 - 0.5 / self.one_by_one
        usual = REPAIRED_STAGE if self.repairs_stages else STAGE
        return usual if self.options.stage is None else self.options.stage

    @property
    def repairs_stages(self) -> bool:
        """Whether what a stage leaves is repaired before it is scored; of layers one after the other goes."""
        options = self.options
        return (
            options.repair_stages
            and options.repair != NONE
            and not self.one_by_one
            and options.search == STAGES
        )

    def uncut(self, path: BudgetPath | SublayerPath, asked: str) -> Pruned:
        """Return the model as it is."""
        return Pruned(path.cut(Mask.ones(self.sites)), Mask.ones(self.sites), asked, 0.0, True)

    def counted(self, path: BudgetPath | SublayerPath, currency: Currency, budget: Budget) -> Pruned:
        """Cut to a budget that is counted."""
        asked = self.asked(budget, currency)
        with self._clock("choosing"):
            mask = path.mask(currency.left(asked, budget))
            small = path.cut(mask)
        now = count_cost(small, budget.kind, self.session.stored.itemsize)
        achieved = now if budget.kind == "size" else now / currency.whole
        return Pruned(small, mask, str(budget), achieved, now <= asked * (1 + 1e-9))

    def timed(self, path: BudgetPath | SublayerPath, currency: Currency, budget: Budget) -> Pruned:
        """Cut, measure, and correct the budget until the measured model meets it."""
        target = self.asked(budget, currency)
        best: Pruned | None = None
        for _ in range(STEPS):
            with self._clock("choosing"):
                _, mask = search_units(
                    path.mask, lambda m: self.table.predict(self.sites, m), path.whole, target
                )
                small = path.cut(mask)
            now = Pruned(small, mask, str(budget), 0.0, False)
            ratio = self._judge(now, budget)
            best = now if best is None else max(best, now, key=lambda one: one.nearness(budget))
            if abs(ratio - 1) <= ACCURATE / 2:
                break
            target *= ratio if budget.kind == "speedup" else 1 / ratio
        assert best is not None
        self._judge(best, budget)  # once more: of several measurements the nearest is no measurement
        return best

    def _judge(self, made: Pruned, budget: Budget) -> float:
        """Time a cut model, note whether it is fast enough, and return what it reaches of what was asked."""
        made.times, fast = self.time(made.model), budget.kind == "speedup"
        made.achieved = speedup_of(made.times) if fast else float(made.times[1].median())
        ratio = made.achieved / budget.value
        made.met = ratio >= 1 - ACCURATE if fast else ratio <= 1 + ACCURATE
        return ratio

    def time(self, small: Any) -> torch.Tensor:
        """Return the seconds of passes of the unpruned and of the cut model in turns, [2, rounds]."""
        self.on_progress(Progress("timing passes"))
        with self._clock("measuring"):
            models, batch = [self.session.model, small], self.shape.batch(self.session.model)
            once = float(time_rounds(models, batch, 3).sum(0).median())
            return time_rounds(models, batch, int(min(MOST_ROUNDS, max(ROUNDS, SECONDS / once))), warmup=0)

    def repair(self, small: Any) -> list[Any]:
        """Repair a cut model as the options say."""
        session, how = self.session, self.options.repair
        report: Any = {"on_progress": self.on_progress}
        with self._clock("repairing"), logged_once(self.logged, by_template):
            if self.options.search == SUBLAYERS:  # repaired already, on what its sublayers were chosen by
                return repair(small, session.model, session.calibration, how, **report)
            return repair_cut(session, small, how, **report)

    def lap(self) -> dict[str, float]:
        """Return the seconds spent since the last time."""
        found, self.seconds = self.seconds, dict.fromkeys(self.seconds, 0.0)
        return found

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start


def prune_budgets(
    session: Session,
    method: Method,
    budgets: Sequence[Budget],
    options: BudgetOptions,
    *,
    folder: Path | None = None,
    on_progress: OnProgress = ignore,
) -> list[tuple[Any, dict[str, Any]]]:
    """Prune to each budget, from one scoring. Returns every model with the facts about it.

    Several budgets are written into folders of their own, as `speedup-2` inside the folder.
    """
    run, currency = _begin(session, method, budgets, options, on_progress)
    log.info("%s", describe_estimate(estimate(run, method, currency, budgets)))
    record = BudgetRecord(folder, identify(session, method, currency, options))
    path, found = record.follow(run.path(currency)), list[Finished]()
    path.aim = min((run.asked(one, currency) - currency.fixed for one in budgets), default=torch.inf)
    before = Reference(session, on_progress)
    if not budgets:
        made = search_tolerance(run, path, currency, before, record)
        found = [finish_model(run, before, made, None, folder)]
    for budget in budgets:
        place = place_of(folder, budgets, budget)
        finished = record.finished(budget, place)
        if finished is None:
            made = (run.timed if budget.timed else run.counted)(path, currency, budget)
            made.repaired = run.repair(made.model)
            finished = record.finish(budget, finish_model(run, before, made, budget, place))
        found.append(finished)
    record.close()
    return found


def estimate_budgets(
    session: Session,
    method: Method,
    budgets: Sequence[Budget],
    options: BudgetOptions,
    *,
    folder: Path | None = None,
    on_progress: OnProgress = ignore,
) -> dict[str, Any]:
    """Return what `prune_budgets` would do, and about how long it should take; nothing is pruned."""
    run, currency = _begin(session, method, budgets, options, on_progress)
    found = estimate(run, method, currency, budgets)
    asked = [
        {"kind": one.kind, "asked": str(one), "share": run.asked(one, currency) / currency.whole}
        for one in budgets
    ]
    asked = asked or [{"kind": "tolerance", "asked": str(options.tolerance), "share": None}]
    facts = {"dry_run": True, "model": session.name, "task": session.task.name, "target": session.target}
    facts |= {"method": method.label, "repair": options.repair, "units": sum(one.units for one in run.sites)}
    facts |= {"folder": folder and str(folder), "budgets": asked, **found, "parts": found["seconds"]}
    return facts | {"seconds": sum(found["seconds"].values())}


def _begin(
    session: Session,
    method: Method,
    budgets: Sequence[Budget],
    options: BudgetOptions,
    on_progress: OnProgress,
) -> tuple[BudgetRun, Currency]:
    session.check_metric()
    run = BudgetRun(session, method, options, on_progress)
    currency = run.currency(budgets[0].kind if budgets else "macs")
    for budget in budgets:  # before any long work
        left = currency.left(run.asked(budget, currency), budget)
        check_room(run.sites, currency, left, budget, options.multiple, options.least_heads)
    return run, currency


def place_of(folder: Path | None, budgets: Sequence[Budget], budget: Budget) -> Path | None:
    """Return where the model of a budget is written: of several, each has a folder in the folder."""
    return folder / f"{budget.kind}-{budget}" if folder and len(budgets) > 1 else folder
