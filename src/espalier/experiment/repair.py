"""Repair in a session: on more training examples than units are scored by."""

from __future__ import annotations

from typing import Any

from ..core.batches import Batches
from ..pruning.repair import Repaired, repair
from .session import Session

REFIT = "refit"
MORE = 4  # times the examples of calibration: of the last block of a classifier each gives one token only
MOST_TOKENS = 1 << 16  # padding included; what a repair keeps of a block is proportional to them


def repair_cut(session: Session, small: Any, how: str) -> list[Repaired]:
    """Repair a cut model as the unpruned one of the session predicts."""
    return repair(small, session.model, repair_batches(session, how), how)


def repair_batches(session: Session, how: str = REFIT) -> Batches:
    """Return what a repair is fitted on: calibration data, and for a refit more of the training examples."""
    scored = session.calibration
    tokens = sum(batch["input_ids"].numel() for batch in scored) / max(1, scored.examples)
    count = min(MORE * scored.examples, int(MOST_TOKENS / max(1.0, tokens)))
    few = how != REFIT or session.task.kind == "language" or count <= scored.examples
    return scored if few or session.draw is None else session.draw(count)
