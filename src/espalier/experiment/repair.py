"""Repair in a session: on more training examples than units are scored by."""

from __future__ import annotations

from typing import Any

from ..core.batches import Batches
from ..core.progress import OnProgress, Progress, ignore
from ..pruning.repair import Repaired, repair
from .session import Session

REFIT = "refit"
MORE = 4  # times the examples of calibration: of the last block of a classifier each gives one token only
MOST_TOKENS = 1 << 16  # padding included; what a repair keeps of a block is proportional to them


def repair_cut(session: Session, small: Any, how: str, on_progress: OnProgress = ignore) -> list[Repaired]:
    """Repair a cut model as the unpruned one of the session predicts."""
    on_progress(Progress("repairing", message="reading examples to repair by"))
    data = repair_batches(session, how)
    return repair(small, session.model, data, how, on_progress=on_progress)


def repair_batches(session: Session, how: str = REFIT) -> Batches:
    """Return what a repair is fitted on: calibration data, and for a refit more of the training examples."""
    count = repair_examples(session, how)
    return session.calibration if count is None or session.draw is None else session.draw(count)


def repair_examples(session: Session, how: str) -> int | None:
    """Return how many training examples a repair reads, if there are as many; None: those of calibration."""
    scored = session.calibration
    examples = max(1, scored.predictions)  # a pair of texts is one
    tokens = sum(batch["input_ids"].numel() for batch in scored) / examples
    count = min(MORE * examples, int(MOST_TOKENS / max(1.0, tokens)))
    few = how != REFIT or count <= examples
    return None if few or session.draw is None else count
