"""Prune heads or neurons while the model trains: learned gates, or any criterion by a schedule; then cut."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..architectures.sites import sites as find_sites
from ..core.errors import InvalidValueError, UnsupportedError
from ..core.progress import OnProgress, Progress, ignore
from ..evaluation.latency import time_models
from ..evaluation.metrics import check_above_majority
from ..pruning.cut import plan_of
from .assessment import assess, find_chance
from .levels import removal
from .method import Method, check_learned
from .prune_units import basic_facts, check_cuttable
from .recovery import callback_class, gradual_callback
from .session import VALIDATION, Session
from .trainer import LOOP, train_session

OWN = "untrained"  # of this file
CHANCE = 0.95  # of ln(vocabulary): the loss of a language model that has learned next to nothing


def check_trained(method: Method, target: str, remove: float | None, more: Mapping[str, Any]) -> None:
    """Raise for what cannot be done, before anything is loaded."""
    check_learned(method, True)
    make = callback_class(method, target)
    taken = {field.name for field in fields(make) if field.init}
    for name in more:
        if name not in (*LOOP, OWN, *taken):
            known = ", ".join(sorted({*LOOP, OWN, *taken} - {"score", "about", "batches", "before", "also"}))
            raise InvalidValueError(
                f"`{name}` is no option of {method.label} on {target}; it takes {known}", name
            )
    options = {name: value for name, value in more.items() if name not in (*LOOP, OWN)}
    if "penalty" not in taken or remove is not None:
        removal(method, remove)
    if method.learned:
        make(remove, **options)
    else:
        make(method.loaded, remove, **options)


def prune_trained(
    session: Session,
    method: Method,
    *,
    remove: float | None = None,
    folder: Path | None = None,
    epochs: int = 1,
    untrained: bool = False,
    on_progress: OnProgress = ignore,
    **more: Any,
) -> tuple[Any, dict[str, Any]]:
    """Train the session's model in place while it is pruned, cut and save it. Returns it and facts.

    With a folder, a killed pruning resumes there. A model that has learned nothing is refused unless
    `untrained` is set: what a random model can do without says nothing.
    """
    check_cuttable(session)
    dense = copy.deepcopy(session.model)
    units = {site.name: site.units for site in session.sites}
    on_progress(Progress("measuring the model before pruning"))
    before = assess(session, session.model, folder=session.folder, base=True)
    if not untrained:
        _check_learned_something(session, before)
    training = {name: more.pop(name) for name in LOOP if name in more}
    callback = gradual_callback(session, method, remove, **more)
    origin = session.origin() | {"target": session.target, "method": method.label, "scope": method.scope}
    origin |= {"remove": remove} if remove is not None else {}
    train_session(session, folder, origin, callback, epochs=epochs, on_progress=on_progress, **training)
    model = session.model
    kept = {site.name: site.units for site in find_sites(model, session.target)}
    facts = basic_facts(session, method, 1 - sum(kept.values()) / sum(units.values()))
    facts |= {"units": sum(units.values()), "epochs": epochs, "before": before}
    facts["layers"] = [{"site": name, "units": units[name], "kept": kept[name]} for name in units]
    on_progress(Progress("measuring the pruned model"))
    facts["after"] = assess(session, model, folder=folder, trained=True)
    facts |= find_chance(
        session, facts["after"], f"{session.name} with {100 * facts['removed']:.3g} % removed"
    )
    facts["plan"] = plan_of(model).to_dict()["keep"]
    first, now = time_models([dense, model], session.test[len(session.test) // 2])
    return model, facts | {"speedup": first.best / now.best, "folder": folder and str(folder)}


def _check_learned_something(session: Session, before: Mapping[str, Any]) -> None:
    """Raise for a classifier no better than the most frequent class, or a language model near chance."""
    found, chance = before[VALIDATION], math.log(session.model.config.get_text_config().vocab_size)
    problem = check_above_majority(session.truth(VALIDATION), found.get("accuracy"))
    if session.task.kind == "language" and found["loss"] > CHANCE * chance:
        problem = (
            f"its loss on validation is {found['loss']:.3g}; guessing among all words gives {chance:.3g}."
        )
    if problem:
        raise UnsupportedError(f"{session.name}: {problem} Train it first, or give `untrained=True`")
