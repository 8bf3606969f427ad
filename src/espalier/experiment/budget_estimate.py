"""How long a budget run will take: the criterion and a pass are timed on the first batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..core.batches import Batches, model_inputs
from .budget import Budget, Currency
from .method import Method
from .session import TEST, VALIDATION

if TYPE_CHECKING:
    from .prune_budget import BudgetRun

FIRST = 2  # batches that are timed, once one of them and once both: the difference is what more of them cost
MOST_STAGES = 50


def estimate(run: BudgetRun, method: Method, currency: Currency, budgets: Sequence[Budget]) -> str:
    """Say how long scoring and measuring will take; repairing and timing come on top of it.

    A stage of a smaller model is counted by its share of the cost.
    """
    session = run.session
    own = session.calibration_of(method.criterion)
    parts = [Batches(own[:n], own.loss, read=own.read) for n in range(1, 1 + min(FIRST, len(own)))]
    seconds = [_time(partial(_score, run, method, part)) for part in parts]
    seconds = [min(seconds), *seconds[1:]]  # the first call may load code
    rows = [sum(batch["input_ids"].numel() for batch in part) for part in (*parts, own)]
    more = max(0.0, seconds[-1] - seconds[0]) / max(1, rows[-2] - rows[0]) if len(parts) > 1 else 0.0
    once = seconds[-1] + more * (rows[-1] - rows[-2])
    shares = _stages(run, currency, budgets, run.stage if method.rescore else 0.0)
    every = [session.batches(split) for split in (VALIDATION, TEST)]
    first = every[0][:1]
    forward = _time(partial(_run, session.model, first))
    tokens = [sum(batch["input_ids"].numel() for batch in part) for part in (first, *every)]
    passes = 1 + sum(_share(run, currency, budget) for budget in budgets)
    measuring = forward * passes * (tokens[1] + tokens[2]) / max(1, tokens[0])
    return (
        f"scoring takes about {once * sum(shares):.0f} s in {len(shares)} stages, measuring about "
        f"{measuring:.0f} s, by what the first batches took; repairing comes on top"
    )


def _score(run: BudgetRun, method: Method, batches: Batches) -> Any:
    with run.session.arithmetic():
        return method.loaded(run.session.model, run.sites, batches, **method.options)


def _run(model: Any, batches: Sequence[Any]) -> None:
    with torch.no_grad():
        for batch in batches:
            model(**{name: value.to(model.device) for name, value in model_inputs(batch).items()})


def _time(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _share(run: BudgetRun, currency: Currency, budget: Budget) -> float:
    return min(1.0, run.asked(budget, currency) / currency.whole)


def _stages(run: BudgetRun, currency: Currency, budgets: Sequence[Budget], stage: float) -> list[float]:
    """Return the share of the cost at which each stage is scored."""
    if (few := run.one_by_one) and stage:
        stage = 1 - 1 / few
    last = min((_share(run, currency, budget) for budget in budgets), default=0.25)
    shares = [1.0]
    while stage and shares[-1] * stage > last and len(shares) < MOST_STAGES:
        shares.append(shares[-1] * stage)
    return shares
