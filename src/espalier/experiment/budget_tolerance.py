"""The smallest model within a tolerance: shares of the MACs are bisected, judged on validation data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.progress import Progress
from .assessment import predict_split
from .budget import Budget, Currency
from .budget_record import BudgetRecord
from .reference import Reference
from .session import VALIDATION

if TYPE_CHECKING:
    from .prune_budget import BudgetRun, Pruned

SMALLEST = 0.04  # the smallest share of the MACs that is tried
BISECTIONS = 7


def search_tolerance(
    run: BudgetRun, path: Any, currency: Currency, before: Reference, record: BudgetRecord
) -> Pruned:
    """Bisect for the smallest model whose loss is below the tolerance, by a one-sided bound on validation."""
    drop, asked = before.allowed(run.options.tolerance or 0.0, VALIDATION), str(run.options.tolerance)
    low, high = max(SMALLEST, 1.001 * currency.floor / currency.whole), 1.0
    whole = run.uncut(path, asked)
    run.session.round_to_stored(whole.model)
    best: Pruned | None = whole
    for step in range(BISECTIONS):
        share, made = (low * high) ** 0.5, None
        what = f"try {step + 1} of {BISECTIONS}"
        run.on_progress(Progress("searching", step, BISECTIONS, f"{what}: {share:.3f} of the MACs"))
        change = record.find("tried", share)
        if change is None:
            made = _repaired_at(run, path, currency, share)
            found = predict_split(run.session, made.model, VALIDATION, run.on_progress, what)
            change = before.change(found, VALIDATION)
            record.add({"kind": "tried", "key": share, "value": change})
        if change["bound"] is not None and change["bound"] >= -drop:
            best, high = made, share
        else:
            low = share
    if best is not whole:
        best = best or _repaired_at(run, path, currency, high)  # it was tried before the run was killed
        best.asked = asked
    return best


def _repaired_at(run: BudgetRun, path: Any, currency: Currency, share: float) -> Pruned:
    made = run.counted(path, currency, Budget("macs", share))
    made.repaired = run.repair(made.model)
    run.session.round_to_stored(made.model)
    return made
