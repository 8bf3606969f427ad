"""A comparison from what was asked to its report: in a folder that resumes, or without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..analysis.tolerance import Tolerance
from ..core import distributed
from ..core.progress import OnProgress
from ..experiment.estimate import estimate_comparison
from ..experiment.manifest import begun_precision, check_folder
from ..experiment.method import Method
from ..experiment.recovery import Recovery
from ..experiment.runner import run_comparison
from ..experiment.session import Session
from ..io.paths import optional_path
from ..reports.estimate import estimate_tables
from ..reports.outcome import Comparison
from .greedy_gnorm.pooling import write_pooling
from .sources import make_report


def compare_in(
    folder: str | Path | None,
    opened: Callable[[str], Session],
    methods: Sequence[Method],
    levels: Sequence[float],
    recovery: Recovery | None,
    tolerance: Tolerance,
    *,
    precision: str,
    all_scores: bool,
    timed: bool,
    figures: bool,
    dry_run: bool,
    on_progress: OnProgress,
) -> Comparison:
    """Run a comparison, or with `dry_run` say what would be done; `opened` opens it in a precision."""
    with nullcontext(folder) if folder and not dry_run else TemporaryDirectory() as place:
        where = Path(place)
        check_folder(where)
        session = opened(begun_precision(where, precision))
        if dry_run:
            facts = estimate_comparison(
                session, methods, levels, recovery, optional_path(folder), on_progress
            )
            return Comparison(facts, estimate_tables(facts), ["Nothing was written."])
        how: Any = dict(tolerance=tolerance, recovery=recovery, all_scores=all_scores, timed=timed)
        run_comparison(session, methods, where, remove=levels, on_progress=on_progress, **how)
        if distributed.leave_group():
            return Comparison({}, folder=where)
        write_pooling(session, where)
        shown: Any = dict(figures=figures, on_progress=on_progress)
        shown["published"] = session.target == "heads" and session.task.metric == "accuracy"
        return make_report([where], where if folder else None, tolerance, **shown)
