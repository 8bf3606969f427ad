"""Checks as outcomes: every check of a contract with its result, for the command line and notebooks."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

from .. import criteria
from ..architectures.table import architectures, load_table, register_architecture
from ..core.errors import UnknownNameError
from ..core.progress import OnProgress, Progress, ignore
from ..experiment.session import SessionOptions, open_session
from ..experiment.verb import verb
from ..reports.outcome import Outcome
from ..reports.tables import Table
from . import architecture as table_contract
from . import criterion as criterion_contract
from .behaviours import BEHAVIOURS
from .gradients import diagnose

Check = Callable[[Any], Any]  # returns False where it does not apply
NOT_APPLICABLE = "not applicable"


@verb
def check_architecture(name: str, on_progress: OnProgress = ignore) -> Outcome:
    """Run the contract and the behaviours of transformers 4 on a model type, or on a table in a Python file.

    "all" are the types of every table.
    """
    if name.endswith(".py"):
        types: Sequence[str] = register_architecture(load_table(name)).models
    elif name in architectures() or name == "all":
        types = [name] if name != "all" else sorted(architectures())
    else:
        known = sorted(architectures())
        raise UnknownNameError("architecture", name, known, "name", "Or give a Python file.")
    checks = {**table_contract.CHECKS, **BEHAVIOURS}
    return _run(name, "type", {one: one for one in types}, checks, on_progress)


@verb
def check_criterion(name: str, on_progress: OnProgress = ignore) -> Outcome:
    """Run the contract on a criterion, or on the one in a Python file."""
    return _run(name, "criterion", {name: criteria.load(name)}, criterion_contract.CHECKS, on_progress)


@verb
def check_gradients(
    model: Any,
    task: Any,
    *,
    few: int = 8,
    sample: int = 12,
    on_progress: OnProgress = ignore,
    **options: Unpack[SessionOptions],
) -> Outcome:
    """Check that the Q, K and V gradients of every head exist, are right, and suffice to rank heads."""
    session = open_session(model, task, target="heads", on_progress=on_progress, **options)
    on_progress(Progress("checking gradients"))
    seed = options.get("seed", 0)
    found = diagnose(session.model, session.sites, session.calibration, few=few, sample=sample, seed=seed)
    rows = [{"check": f.name, "verdict": f.verdict, "seen": f.means, "what to do": f.advice} for f in found]
    # Only what affects our own scores fails; what only simpler arithmetic suffers from is a warning.
    facts = {"findings": [f.to_dict() for f in found], "passed": not any(f.verdict == "error" for f in found)}
    return Outcome(facts, [Table(rows)])


def _run(
    name: str, kind: str, subjects: dict[str, Any], checks: dict[str, Check], on_progress: OnProgress
) -> Outcome:
    rows: list[dict[str, str]] = []
    jobs = [(subject, check) for subject in subjects for check in checks]
    for subject, check in jobs:
        on_progress(Progress(f"checking {name}", len(rows), len(jobs), check))
        try:
            result = NOT_APPLICABLE if checks[check](subjects[subject]) is False else "ok"
        except Exception as error:  # whatever a wrong table makes of a model, it is a failed check
            last = traceback.extract_tb(error.__traceback__)[-1]  # often what a table does not update
            at = "" if isinstance(error, AssertionError) else f" (at {Path(last.filename).name}: {last.line})"
            result = f"{type(error).__name__}: {error}{at}"
        rows.append({kind: subject, "check": check, "result": result})
    seen = Counter(row["result"] for row in rows)
    counts = {"ok": seen["ok"], NOT_APPLICABLE: seen[NOT_APPLICABLE]}
    counts["failed"] = len(rows) - sum(counts.values())
    note = ", ".join(f"{count} {result}" for result, count in counts.items())
    facts = {"checks": rows, "counts": counts, "passed": not counts["failed"]}
    return Outcome(facts, [Table(rows)], [f"{len(rows)} checks: {note}."])
