"""How long a budget run will take: the criterion and a pass are timed on a few batches of all lengths."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from ..core.batches import SCORES, Batches, model_inputs
from .budget import Budget, Currency
from .method import Method
from .session import TEST, VALIDATION

if TYPE_CHECKING:
    from .prune_budget import BudgetRun

SHARES = (1 / 6, 1 / 2, 5 / 6)  # of all tokens, in shorter batches than each of those that are timed
MOST_STAGES = 50


def estimate(run: BudgetRun, method: Method, currency: Currency, budgets: Sequence[Budget]) -> str:
    """Say how long scoring and measuring will take; repairing and timing come on top of it.

    A stage of a smaller model is counted by its share of the cost.
    """
    session = run.session
    own = session.calibration_of(method.criterion)
    timed = _sample(own)
    parts = [Batches(some, own.loss, read=own.read) for some in (_first_rows(timed), timed)]
    seconds = [_time(partial(_score, run, method, part)) for part in parts]
    tokens = [_tokens(part) for part in parts]
    more = (seconds[1] - seconds[0]) / max(1, tokens[1] - tokens[0])
    if more <= 0:  # the first call loaded code, or there is one row
        more = seconds[1] / max(1, tokens[1])
    once = seconds[1] + more * (_tokens(own) - tokens[1])
    shares = _stages(run, currency, budgets, run.stage if method.rescore else 0.0)
    every = [batch for split in (VALIDATION, TEST) for batch in session.batches(split)]
    some = _sample(every)
    forward = _time(partial(_run, session.model, some))
    passes = 1 + sum(_share(run, currency, budget) for budget in budgets)
    measuring = forward * passes * _tokens(every) / max(1, _tokens(some))
    return (
        f"scoring takes about {once * sum(shares):.0f} s in {len(shares)} stages, measuring about "
        f"{measuring:.0f} s, by what a few batches of all lengths took; repairing comes on top"
    )


def _tokens(batches: Sequence[Any]) -> int:
    return sum(batch["input_ids"].numel() for batch in batches)


def _sample(batches: Sequence[Any]) -> list[Any]:
    """Return a short batch, one of middle length and a long one, each for a third of the tokens."""
    ordered = sorted(batches, key=lambda batch: batch["input_ids"].shape[1])
    ends = list(accumulate(_tokens([batch]) for batch in ordered))
    places = dict.fromkeys(bisect_left(ends, share * ends[-1]) for share in SHARES)
    return [ordered[place] for place in places]


def _first_rows(batches: Sequence[Any]) -> list[dict[str, Any]]:
    """Return one pair or two texts of the first batch: what scoring takes whatever the number of tokens."""
    return [
        {name: value[: 1 if name == SCORES else 2] for name, value in batch.items()} for batch in batches[:1]
    ]


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
