"""How long a budget run will take: scoring, a repair and a pass are timed on a few batches of all lengths."""

from __future__ import annotations

import copy
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from ..architectures.sites import sites as find_sites
from ..core.batches import SCORES, Batches, model_inputs
from ..core.mask import Mask
from ..core.progress import Progress
from ..core.terminal import muted
from ..pruning.cut import cut
from ..pruning.path import stage_shares
from ..pruning.repair import NONE, repair
from .budget import Budget, Currency
from .budget_choice import SUBLAYERS
from .budget_tolerance import BISECTIONS
from .method import Method
from .repair import repair_examples
from .session import TEST, VALIDATION

if TYPE_CHECKING:
    from .prune_budget import BudgetRun

SHARES = (1 / 6, 1 / 2, 5 / 6)  # of all tokens, in shorter batches than each of those that are timed
LOWEST, USUAL = (
    0.25,
    0.5,
)  # shares of the cost: how far a tolerance is expected to go, and what most tries keep


def estimate(run: BudgetRun, method: Method, currency: Currency, budgets: Sequence[Budget]) -> dict[str, Any]:
    """Return the stages of scoring, and about the seconds of scoring, repairing and measuring.

    A smaller model is counted by its share of the cost. Timing, a few seconds a model, comes on top.
    """
    session, report = run.session, run.on_progress
    report(Progress("timing a scoring"))
    own = session.calibration_of(method.criterion)
    once = _seconds(partial(_score, run, method), own, _tokens(own))
    shares = _stages(run, currency, budgets, run.stage if method.rescore else 0.0)
    kept = [_share(run, currency, budget) for budget in budgets] or [USUAL]
    repairs = len(budgets) or BISECTIONS
    report(Progress("timing a repair"))
    repairing = repairs * _repairing(run, sum(kept) / len(kept)) if run.options.repair != NONE else 0.0
    scoring, later = once * sum(shares), shares[1:] if run.repairs_stages else []
    if later:
        scoring += len(later) * _repairing(run, sum(later) / len(later), calibration_only=True)
    report(Progress("timing a pass"))
    splits = [session.batches(split) for split in (VALIDATION, TEST)]
    some = _sample([batch for split in splits for batch in split])
    with session.arithmetic():
        forward = _time(partial(_run, session.model, some)) / max(1, _tokens(some))
    measuring = forward * (1 + sum(kept)) * sum(map(_tokens, splits))
    if not budgets:
        measuring += forward * BISECTIONS * USUAL * _tokens(splits[0])
    seconds = {"scoring": scoring, "repairing": repairing, "measuring": measuring}
    return {"stages": len(shares), "repairs": repairs, "seconds": seconds}


def describe_estimate(found: Mapping[str, Any]) -> str:
    """Say in one sentence how long a run should take."""
    about = {name: f"about {value:.0f} s" for name, value in found["seconds"].items()}
    repairing = f"repairing {about['repairing']}, " if found["seconds"]["repairing"] else ""
    return (
        f"scoring takes {about['scoring']} in {found['stages']} stages, {repairing}measuring "
        f"{about['measuring']}, by what a few batches of all lengths took just now"
    )


def _seconds(work: Callable[[Batches], Any], batches: Batches, tokens: float) -> float:
    """Return what work on so many tokens takes: it is timed on two texts and on batches of all lengths."""
    timed = _sample(batches)
    parts = [Batches(some, batches.loss, read=batches.read) for some in (_first_rows(timed), timed)]
    seconds = [_time(partial(work, part)) for part in parts]
    seen = [_tokens(part) for part in parts]
    more = (seconds[1] - seconds[0]) / max(1, seen[1] - seen[0])
    if more <= 0:  # the first call loaded code, or there is one row
        more = seconds[1] / max(1, seen[1])
    return seconds[1] + more * (tokens - seen[1])


def _repairing(run: BudgetRun, share: float, *, calibration_only: bool = False) -> float:
    """Return the seconds of a repair: that of the first block, cut to a share, times all blocks.

    Stages are repaired by the examples of calibration only.
    """
    session, how = run.session, run.options.repair
    stacked = run.one_by_one > 0
    sites = [site for site in find_sites(session.model) if not site.uncuttable] if stacked else run.sites
    path = next((site.path for site in sites if site.units), None)
    if path is None:
        return 0.0
    first = [site for site in sites if site.path == path]
    mask = Mask.ones(first)
    for site in first:
        mask[site.name][min(max(1, round(share * site.units)), site.units - 1) :] = False
    # cutting and repairing make new parameters, so the others may be shared
    same = {id(p): p for p in session.model.parameters()}

    def work(batches: Batches) -> None:
        small = cut(copy.deepcopy(session.model, dict(same)), mask, report=False)
        with muted():
            repair(small, session.model, batches, how)

    own = session.calibration
    few = calibration_only or run.options.search == SUBLAYERS
    count = None if few else repair_examples(session, how)
    more = 1.0 if count is None else min(count, len(session.task.train)) / max(1, own.predictions)
    blocks = (1 - share) * run.one_by_one if stacked else len(sites) / len(first)
    return blocks * _seconds(work, own, more * _tokens(own))


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
    asked = [run.asked(budget, currency) for budget in budgets] or [LOWEST * currency.whole]
    units = max(currency.whole - currency.fixed, 1e-12)
    last = max(0.0, min(asked) - currency.fixed) / units
    if run.options.search == SUBLAYERS:
        count = len(run.sites)  # what is below a sublayer is not run again
        later = [1 - number / count for number in range(1, count)]
        shares = [1.0, *later * max(1, len(budgets))]
    else:
        shares = stage_shares(last, stage, run.one_by_one)
    return [(currency.fixed + share * units) / currency.whole for share in shares]
