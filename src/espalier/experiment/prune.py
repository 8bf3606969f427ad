"""Which way a pruning goes: weights to zero, units while training, or units by a measured order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .method import Method
from .prune_trained import check_trained, prune_trained
from .prune_units import check_units, prune_units
from .prune_weights import check_options, check_weights, prune_weights
from .session import Session


def check_pruning(
    method: Method,
    target: str,
    more: Mapping[str, Any],
    *,
    remove: float | None,
    tolerance: float | None,
    folder: Path | None,
    run: Path | None,
    epochs: int,
) -> None:
    """Raise for what cannot be done, before anything is loaded."""
    weights = target == "weights"
    check_options(weights, epochs, more, limited=run is not None or tolerance is not None)
    if weights:
        check_weights(method, remove, epochs, more.get("schedule", "cubic"), more.get("initial", 0.0))
    elif epochs:
        check_trained(method, target, remove, more)
    else:
        check_units(method, remove, tolerance, run, folder)


def prune_session(
    session: Session, method: Method, *, tolerance: float | None, run: Path | None, epochs: int, **how: Any
) -> tuple[Any, dict[str, Any]]:
    """Prune, measure and save. Returns the model and facts; no facts in processes that only helped."""
    if session.target == "weights":
        return prune_weights(session, method, epochs=epochs, **how)
    if epochs:
        return prune_trained(session, method, epochs=epochs, **how)
    return prune_units(session, method, tolerance=tolerance, run=run, **how)
