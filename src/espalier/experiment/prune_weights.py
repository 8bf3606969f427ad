"""Set weights to zero, in one shot or while the model trains: the model, and facts before and after."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import InvalidValueError, UnknownNameError
from ..core.progress import OnProgress, Progress, ignore
from ..core.terminal import log
from ..pruning.zero import zero
from ..selection.schedules import ONE_SHOT, Ramp
from ..selection.scopes import remove_lowest
from ..storage.save import save
from ..training.callbacks import count_zeros
from ..training.held_mask import mask_of_zeros
from .assessment import assess, find_chance
from .levels import check_groups, check_reachable, removal
from .method import Method, check_learned
from .prune_units import basic_facts
from .recovery import gradual_callback
from .scorer import score_session
from .session import Session, SessionOptions
from .trainer import LOOP, train_session
from .walk import repair

OWN = ("method", "target", "remove", "tolerance", "scope", "folder", "run", "epochs")  # of prune itself
# what a gradual pruning takes besides the options of a session
TRAINING = (
    *("schedule", "initial", "until", "mask_interval", "ste", "l1"),
    *LOOP,
)
UNITS = (
    "penalty",
    "form",
    "delay",
    "warmup",
    "init",
    "scaled",
    "gate_lr",
    "untrained",
)  # of heads and neurons


def check_options(weights: bool, epochs: int, more: Mapping[str, Any], *, limited: bool) -> None:
    """Raise for options that do not fit the target; `limited`: a tolerance or a run is given."""
    for name in more:
        if name not in (*TRAINING, *UNITS):
            known = [*OWN, *TRAINING, *UNITS, *SessionOptions.__annotations__]
            raise UnknownNameError("option", name, known, name)
        if weights and name in UNITS:
            raise InvalidValueError(f"`{name}` is for heads and neurons that are pruned while training", name)
        if not epochs and name != "overwrite":
            raise InvalidValueError(f"`{name}` needs `epochs` of at least 1", name)
    if (weights or epochs) and limited:
        what = "weights are" if weights else "with `epochs`, units are"
        raise InvalidValueError(f"{what} pruned to `remove`, without `tolerance` or `run`", "remove")


def check_weights(
    method: Method, remove: float | None, epochs: int, schedule: str = "cubic", initial: float = 0.0
) -> float:
    """Return the fraction to remove; raise for combinations that make no sense, before anything is loaded."""
    removed = removal(method, remove)
    check_learned(method, epochs > 0)
    Ramp(removed, 1, schedule, initial)
    if epochs:
        check_groups([method], [removed], schedule)
    return removed


def prune_weights(
    session: Session,
    method: Method,
    *,
    remove: float | None = None,
    folder: Path | None = None,
    epochs: int = 0,
    schedule: str = "cubic",
    initial: float = 0.0,
    until: float = 0.75,
    mask_interval: int | None = None,
    ste: bool = False,
    l1: float = 0.0,
    overwrite: bool = False,
    on_progress: OnProgress = ignore,
    **training: Any,
) -> tuple[Any, dict[str, Any]]:
    """Set weights to zero, in one shot or while the model trains, and save. Returns the model and facts."""
    removed = check_weights(method, remove, epochs, schedule, initial)
    check_reachable(session, [method], [removed])
    facts = basic_facts(session, method, removed) | {"schedule": schedule if epochs else ONE_SHOT}
    on_progress(Progress("measuring the model before pruning"))
    facts["before"] = assess(session, session.model, folder=session.folder, base=True)
    origin = session.origin() | {
        "target": "weights",
        "method": method.label,
        "scope": method.scope,
        "remove": removed,
    }
    if epochs:
        callback = gradual_callback(
            session,
            method,
            removed,
            schedule=schedule,
            initial=initial,
            until=until,
            mask_interval=mask_interval,
            ste=ste,
            l1=l1,
        )
        origin |= {"schedule": schedule}
        how: Any = dict(epochs=epochs, overwrite=overwrite, on_progress=on_progress, **training)
        train_session(session, folder, origin, callback, **how)
    else:
        _prune_in_one_shot(session, method, removed)
        origin |= {"repaired": method.repairs} if method.repairs else {}
        if folder is not None:
            origin |= {"sparsity": count_zeros(session.sites)}
            with session.in_stored_dtype(session.model):
                where: Any = dict(overwrite=overwrite, output=f"prune of {session.name}")
                save(session.model, folder, tokenizer=session.tokenizer, origin=origin, **where)
    on_progress(Progress("measuring the pruned model"))
    facts["after"] = assess(session, session.model, folder=folder, trained=epochs > 0)
    facts |= find_chance(session, facts["after"], f"{session.name} with {100 * removed:.3g} % removed")
    zeros = count_zeros(session.sites)
    facts["pruned"] = {"also": list(session.also), "weights": zeros["weights"], "zero": zeros["zero"]}
    return session.model, facts | {"folder": folder and str(folder)}


def _prune_in_one_shot(session: Session, method: Method, removed: float) -> None:
    kept = mask_of_zeros(session.sites)
    if method.repairs:
        repair(session, method, removed, kept)
        return
    if method.loaded.repairs:
        log.warning(
            "%s updates the kept weights only within %s; with `scope` %s nothing is repaired",
            *(method.label, " or ".join(method.loaded.repairs), method.scope),
        )
    mask = remove_lowest(score_session(session, method), removed, scope=method.scope, mask=kept)
    zero(session.model, mask)
