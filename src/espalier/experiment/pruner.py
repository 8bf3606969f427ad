"""Prune a model as asked: to a budget, to a fraction of its units, by weights or tokens, while training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..analysis.curves import parse_tolerance
from ..architectures.sites import TARGETS
from ..core import distributed
from ..core.batches import SCORES
from ..core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from ..core.progress import OnProgress, ignore
from ..core.terminal import log
from ..engine.dtypes import check_dtype
from ..pruning.repair import NONE, REPAIRS
from ..tasks.task import SIMILARITY
from .budget_request import BOTH, LABEL_FREE, limited_target, parse_request
from .classes import check_labels, label_by_model
from .manifest import check_processes
from .method import parse_method, parse_target
from .next_steps import after_pruning, saved_notes
from .output import check_family, check_not_source, check_output, stored_in
from .prune_budget import estimate_budgets, place_of, prune_budgets
from .prune_tokens import TOKEN_OPTIONS, TOKENS, check_tokens, prune_tokens
from .prune_trained import check_trained, prune_trained
from .prune_units import check_units, prune_units
from .prune_vocabulary import OPTIONS as VOCABULARY_OPTIONS
from .prune_vocabulary import VOCABULARY, check_vocabulary, prune_vocabulary
from .prune_weights import check_options, check_weights, prune_weights
from .session import AnyModel, AnyTask, Session, SessionOptions, open_session

AUTO = "auto"  # both for a budget, else heads
DEFAULT_METHOD = {"heads": "gnorm", "weights": "magnitude"}
DEFAULT_METHOD |= dict.fromkeys(("neurons", "slots"), "taylor:static")
DEFAULT_METHOD |= dict.fromkeys(("layers", "attention", "ffn", "attention,ffn"), "kl")

Made = tuple[Any, dict[str, Any], list[str]]  # a model, facts and notes


def prune_model(
    model: AnyModel,
    task: AnyTask,
    method: str | None,
    budgets: Mapping[str, Any],
    *,
    target: str = AUTO,
    tolerance: float | str | None = None,
    repair: str | None = None,
    folder: Path | None = None,
    dry_run: bool = False,
    dtype: str | None = None,
    on_progress: OnProgress = ignore,
    **more: Any,
) -> Made:
    """Return the smaller model, facts about it, and notes for a reader; of a dry run no model."""
    check_dtype(dtype)
    if dtype is not None and more.get("epochs"):
        raise InvalidValueError(
            "what is pruned while training is saved in float32; leave `dtype` out", "dtype"
        )
    more["dtype"] = dtype
    plain = all(more.get(name) is None for name in ("run", "remove", "scope")) and not more.get("epochs")
    asked = any(value is not None for value in budgets.values())
    limited = None
    target = BOTH if _is_both(target) else target
    if tolerance is not None and plain and not distributed.is_launched():  # a budget is met by one process
        limited = limited_target(method, None if target == AUTO else target)
    if target == TOKENS:
        for name, value in budgets.items():
            if value is not None:
                raise InvalidValueError(f"tokens are dropped to `remove` or `tolerance`, not `{name}`", name)
    if dry_run and (target in (TOKENS, VOCABULARY) or not (asked or limited or _is_both(target))):
        raise InvalidValueError(
            "`dry_run` of prune is for budgets: `macs`, `params`, `size`, `speedup`, `latency`, `tolerance`. "
            "espalier.compare has one for methods, and espalier.train",
            "dry_run",
        )
    if repair is not None and repair not in REPAIRS:
        raise UnknownNameError("repair", repair, REPAIRS, "repair")
    if target == TOKENS:
        how: Any = dict(tolerance=tolerance, repair=repair, folder=folder, on_progress=on_progress)
        return _prune_tokens(model, task, method, **how, **more)
    if target == VOCABULARY:
        others = dict(budgets, method=method, tolerance=tolerance, repair=repair)
        return _prune_vocabulary(model, task, others, folder, on_progress, **more)
    if asked or target == BOTH or limited:
        return _prune_to_budget(
            model,
            task,
            method,
            budgets,
            target=limited or (BOTH if target == AUTO else target),
            tolerance=tolerance,
            repair=repair,
            folder=folder,
            dry_run=dry_run,
            on_progress=on_progress,
            **more,
        )
    return _prune_to_fraction(
        model,
        task,
        method,
        target="heads" if target == AUTO else target,
        tolerance=tolerance,
        repair=repair,
        folder=folder,
        on_progress=on_progress,
        **more,
    )


def _open(model: AnyModel, task: AnyTask, dtype: str | None, **options: Any) -> Session:
    """Open a session whose models are saved in a dtype, that of the model by default."""
    return stored_in(open_session(model, task, **options), dtype)


def _is_both(target: str) -> bool:
    return set(target.split(",")) == set(BOTH.split(","))


def _prune_tokens(
    model: AnyModel,
    task: AnyTask,
    method: str | None,
    *,
    tolerance: float | str | None,
    repair: str | None,
    folder: Path | None,
    on_progress: OnProgress,
    dtype: str | None,
    run: Path | None = None,
    scope: str | None = None,
    epochs: int = 0,
    overwrite: bool = False,
    **more: Any,
) -> Made:
    for name, value in {"run": run, "scope": scope, "epochs": epochs or None}.items():
        if value is not None:
            training = "; train the result with espalier.recover" if name == "epochs" else ""
            raise InvalidValueError(f"tokens have no `{name}`; leave it out{training}", name)
    own: Any = {name: more.pop(name) for name in TOKEN_OPTIONS if name in more}
    for name in more:
        if name not in SessionOptions.__annotations__:
            raise UnknownNameError("option", name, [*TOKEN_OPTIONS, *SessionOptions.__annotations__], name)
    limit = None if tolerance is None else parse_tolerance(tolerance)
    check_tokens(method, tolerance=limit, **own)
    if folder is not None:
        check_output(folder, model, overwrite=overwrite)
    session = _open(model, task, dtype, target="weights", on_progress=on_progress, **more)
    how: Any = dict(tolerance=limit, folder=folder, overwrite=overwrite, on_progress=on_progress)
    how |= {} if repair is None else {"repair": repair}
    small, facts = prune_tokens(session, method, **own, **how)
    return small, facts, saved_notes(session, folder, trained=False, of=(model, task), small=small)


def _prune_to_budget(
    model: AnyModel,
    task: AnyTask,
    method: str | None,
    budgets: Mapping[str, Any],
    *,
    target: str,
    tolerance: float | str | None,
    repair: str | None,
    folder: Path | None,
    on_progress: OnProgress,
    dtype: str | None,
    dry_run: bool = False,
    **more: Any,
) -> Made:
    how: Any = dict(target=target, tolerance=tolerance, repair=repair)
    parsed, chosen, options, own = parse_request(method, budgets, **how, **more)
    if folder is not None and len(parsed) > 1:
        check_family(folder)
    for place in {place_of(folder, parsed, budget) for budget in parsed} or {folder}:
        if place is not None:
            check_output(place, model, overwrite=options.overwrite)
    # where training examples have no labels, and no method is given, one that needs none is taken
    own |= {"texts_suffice": method is None or not chosen.reads_labels, "unlabelled": True}
    session = _open(model, task, dtype, target=target, on_progress=on_progress, **own)
    if session.task.labelled:
        check_labels(session.task)
    else:
        session = label_by_model(session)
    if session.task.kind == SIMILARITY and options.lookahead > 1:
        raise InvalidValueError("`lookahead` compares classes or words; embeddings have neither", "lookahead")
    labelled = any({"labels", SCORES} & set(batch) for batch in session.calibration)
    if method is None and chosen.reads_labels and not labelled:
        log.warning("the calibration examples have no labels: units are scored by %s", LABEL_FREE)
        chosen = parse_method(LABEL_FREE, target.split(",")[0])
    how = dict(folder=folder, on_progress=on_progress)
    if dry_run:
        return None, estimate_budgets(session, chosen, parsed, options, **how), ["Nothing was written."]
    found = prune_budgets(session, chosen, parsed, options, **how)
    small, facts = found[-1]
    if len(found) > 1:
        facts = {"family": [each for _, each in found], "folder": folder and str(folder)}
    where = [f"The model is in {one['folder']}." for _, one in found if one["folder"]]
    return small, facts, where + after_pruning(found[-1][1]["folder"], model, task, session)


def _prune_vocabulary(
    model: AnyModel,
    task: AnyTask,
    others: Mapping[str, Any],
    folder: Path | None,
    on_progress: OnProgress,
    dtype: str | None,
    run: Path | None = None,
    remove: float | None = None,
    scope: str | None = None,
    epochs: int = 0,
    **more: Any,
) -> Made:
    check_vocabulary(more, **others, run=run, remove=remove, scope=scope, epochs=epochs)
    if distributed.is_launched():
        raise UnsupportedError("a vocabulary is trimmed by one process; start one")
    if folder is not None:
        check_output(folder, model, overwrite=bool(more.get("overwrite")))
    own = {name: more.pop(name) for name in VOCABULARY_OPTIONS if name in more}
    options: Any = {**more, "calibration": 1}
    session = _open(model, task, dtype, target=VOCABULARY, on_progress=on_progress, **options)
    small, facts = prune_vocabulary(session, options, folder=folder, on_progress=on_progress, **own)
    return small, facts, saved_notes(session, folder, trained=False, of=(model, task))


def _prune_to_fraction(
    model: AnyModel,
    task: AnyTask,
    method: str | None,
    *,
    target: str,
    folder: Path | None,
    on_progress: OnProgress,
    dtype: str | None,
    remove: float | None = None,
    tolerance: float | str | None = None,
    repair: str | None = None,
    scope: str | None = None,
    run: Path | None = None,
    epochs: int = 0,
    **more: Any,
) -> Made:
    limit = None if tolerance is None else parse_tolerance(tolerance)
    options: Any = {name: more.pop(name) for name in list(more) if name in SessionOptions.__annotations__}
    if not set(target.partition("+")[0].split(",")) <= set(TARGETS):
        raise UnknownNameError("target", target, (*TARGETS, TOKENS, VOCABULARY), "target")
    target, also = parse_target(target)
    chosen = parse_method(method or DEFAULT_METHOD[target], target, scope=scope, also=also)
    check_processes(target, folder or run)
    weights = target == "weights"
    if repair is not None and (weights or epochs):
        instead = "sparsegpt repairs single weights" if weights else "a training repairs what it prunes"
        raise InvalidValueError(f"`repair` is for units that are cut in one shot; {instead}", "repair")
    check_options(weights, epochs, more, limited=run is not None or tolerance is not None)
    if weights:
        check_weights(chosen, remove, epochs, more.get("schedule", "cubic"), more.get("initial", 0.0))
    elif epochs:
        check_trained(chosen, target, remove, more)
    else:
        check_units(chosen, remove, limit, run, folder)
    if folder is not None:
        check_not_source(folder, model)
    if folder is not None and not epochs:
        check_output(folder, model, overwrite=bool(more.get("overwrite")))
    session = _open(model, task, dtype, target=target, also=also, on_progress=on_progress, **options)
    how: Any = dict(remove=remove, folder=folder, on_progress=on_progress, **more)
    if weights:
        small, facts = prune_weights(session, chosen, epochs=epochs, **how)
    elif epochs:
        small, facts = prune_trained(session, chosen, epochs=epochs, **how)
    else:
        small, facts = prune_units(session, chosen, tolerance=limit, run=run, repair=repair or NONE, **how)
    about: Any = dict(trained=epochs > 0, sparse=weights, of=(model, task))
    return small, facts, saved_notes(session, folder, **about) if facts else []
