"""Drop tokens by a fraction or a tolerance: the model with its schedule, and facts before and after."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..analysis.curves import Tolerance, allowed_drop
from ..architectures.sites import blocks
from ..architectures.table import architecture_of
from ..core.batches import model_inputs
from ..core.errors import InvalidValueError, UnknownNameError
from ..core.progress import OnProgress, Progress, ignore
from ..core.terminal import log
from ..engine.cache import tokenwise_module
from ..engine.token_places import dropper_of
from ..evaluation import metrics
from ..evaluation.latency import time_models
from ..pruning.repair import NONE
from ..storage.save import save
from ..tokens.dropper import check_droppable
from ..tokens.forecast import fit_forecasts
from ..tokens.installation import schedule_of, set_schedule
from ..tokens.schedule import (
    FORECAST,
    MERGE,
    THRESHOLD,
    TOP,
    WAYS,
    TokenSchedule,
    check_remove,
    even_schedule,
)
from .assessment import assess, find_chance, measure_split, weight_bytes
from .repair import REFIT, repair_cut
from .session import VALIDATION, Session

TOKENS = "tokens"
TOKEN_OPTIONS = ("remove", "values", "least")
LEAST = 8  # tokens: a text of so few is read whole
LEVELS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # tried for a tolerance
HALVINGS = 12  # to find the thresholds that remove a fraction
COUNTED = 16  # batches in which tokens are counted, about


def check_tokens(
    method: str | None,
    *,
    remove: float | None = None,
    tolerance: Tolerance | None = None,
    values: list[float] | None = None,
    least: int = LEAST,
) -> None:
    """Raise for what cannot be done, before anything is loaded."""
    if method is not None and method not in WAYS:
        raise UnknownNameError("way to choose tokens", method, WAYS, "method")
    given = {"remove": remove, "tolerance": tolerance, "values": values}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise InvalidValueError(
            "say how many tokens to drop by one of `remove` (a fraction, averaged over layers), `tolerance` "
            f"(the loss allowed) and `values` (one for each layer); got {', '.join(named) or 'none'}",
            "remove",
        )
    if remove is not None:
        check_remove(remove)
    if values is not None:
        TokenSchedule(method or FORECAST, tuple(values), least)


def prune_tokens(
    session: Session,
    method: str | None,
    *,
    remove: float | None = None,
    tolerance: Tolerance | None = None,
    values: list[float] | None = None,
    least: int = LEAST,
    repair: str | None = None,
    folder: Path | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = ignore,
) -> tuple[Any, dict[str, Any]]:
    """Return a copy of the model that drops tokens, and facts about it."""
    way, model = method or FORECAST, session.model
    repair = repair or (NONE if way == MERGE else REFIT)
    if way == MERGE and repair != NONE:
        raise InvalidValueError(
            "a merged token stands for several, so no `repair` can follow the unpruned model", "repair"
        )
    if schedule_of(model) is not None:
        log.warning(
            "%s drops tokens already; all are read to begin with, by weights that may have been fitted to "
            "fewer: better begin with the unpruned model",
            session.name,
        )
    set_schedule(model, None)
    layers = len(list(blocks(model, architecture_of(model))))
    check_droppable(model, TokenSchedule(THRESHOLD, tuple(values or (0.0,) * layers)))
    before = assess(session, model, folder=session.folder)
    small = copy.deepcopy(model)
    on_progress(Progress("choosing"))
    lines = fit_forecasts(model, session.calibration) if way == FORECAST else None
    if values is not None:
        schedule = TokenSchedule(way, tuple(values), least)
    elif remove is not None:
        schedule = find_schedule(session, small, way, remove, least)
    else:
        schedule = _within(session, small, way, least, before[VALIDATION], tolerance or 0.0, lines)
    set_schedule(small, schedule if lines is None else schedule.forecasting(lines))
    acts = any(map(schedule.acts, range(layers)))
    plain = copy.deepcopy(small) if acts and tolerance is not None else None
    repaired = repair_cut(session, small, repair, on_progress) if acts else []
    session.round_to_stored(small)
    after = assess(session, small)
    if (
        plain is not None
        and repaired
        and _is_below(session, after[VALIDATION], before[VALIDATION], tolerance)
    ):
        log.warning("the repair left the tolerance on validation: the weights stay as they were")
        session.round_to_stored(plain)
        small, repaired, after = plain, [], assess(session, plain)
    left = count_left(session, small)
    facts: dict[str, Any] = {
        "model": session.name,
        "task": session.task.name,
        "target": TOKENS,
        "method": way,
        "removed": 1 - sum(left) / len(left),
        "metric": session.task.metric,
        "schedule": (schedule_of(small) or schedule).about(),
        "repair": repair if repaired else NONE,
        "repaired": [asdict(one) for one in repaired],
        "left": left,
        "before": before,
    }
    if folder is not None:
        metric = session.task.metric
        origin = {**session.origin(), "tokens": way, "removed tokens": facts["removed"], "metric": metric}
        origin |= {"repair": repair} if repaired else {}
        origin |= {"test before": before["test"][metric], "test after": after["test"][metric]}
        with session.in_stored_dtype(small):
            where: Any = dict(overwrite=overwrite, output=f"prune of {session.name}")
            save(small, folder, tokenizer=session.tokenizer, origin=origin, **where)
    facts["after"] = after | {"bytes": weight_bytes(small, session.stored, folder)}
    facts |= find_chance(session, after, f"{session.name} with fewer tokens")
    first, second = time_models([model, small], session.test[len(session.test) // 2])
    return small, facts | {"speedup": first.best / second.best, "folder": folder and str(folder)}


def reads_first_only(model: Any) -> bool:
    """Return whether the last layer may keep the first token only, as classifiers of BERT's family do."""
    return tokenwise_module(model) is not None


def untuned_schedule(model: Any, way: str, remove: float, least: int = LEAST) -> TokenSchedule:
    """Return the schedule of a model that removes a fraction of the tokens, if that needs no data."""
    check_remove(remove)
    layers = len(list(blocks(model, architecture_of(model))))
    last = way in (TOP, FORECAST) and reads_first_only(model) and remove * layers >= 1
    if way not in (TOP, FORECAST):  # merging needs the maps of every layer in any case
        return even_schedule(layers, remove, way, least=least)
    # Lower layers do not know yet what matters: a third of them reads all, then tokens leave in one layer.
    after = max(0, min(layers // 3, math.ceil(layers * (1 - remove)) - 1))
    return even_schedule(layers, remove, way, stages=1, after=after, last=last, least=least)


def find_schedule(session: Session, model: Any, way: str, remove: float, least: int = LEAST) -> TokenSchedule:
    """Return the schedule that removes a fraction of the tokens, averaged over layers.

    Thresholds rise linearly from layer to layer; how high is measured on calibration data.
    """
    layers = len(list(blocks(model, architecture_of(model))))
    if way != THRESHOLD:
        return untuned_schedule(model, way, remove, least)
    low, high = 0.0, 1.0
    found = TokenSchedule(way, (0.0,) * layers, least)
    for _ in range(HALVINGS) if remove else ():
        height = (low * high) ** 0.5 if low else high / 8
        tried = TokenSchedule(way, tuple(height * (i + 1) / layers for i in range(layers)), least)
        set_schedule(model, tried)
        left = count_left(session, model, calibration=True)
        if 1 - sum(left) / len(left) < remove:
            low = height
        else:
            high, found = height, tried
    set_schedule(model, None)
    return found


def count_left(session: Session, model: Any, *, calibration: bool = False) -> list[float]:
    """Return the fraction of the texts' tokens that is left after each layer, averaged over texts."""
    dropper, sums, n = dropper_of(model), None, 0
    assert dropper is not None
    batches = session.calibration if calibration else session.validation
    with torch.inference_mode():
        for batch in batches[:: max(1, len(batches) // COUNTED)]:  # of all lengths: batches are sorted by it
            model(**model_inputs(batch, labels=False))
            kept = torch.stack([k.sum(1) for k in dropper.state.kept]).double()  # [layers, batch]
            assert dropper.state.lengths is not None
            share = (kept / dropper.state.lengths).sum(1)
            sums, n = share if sums is None else sums + share, n + kept.shape[1]
    return [1.0] if sums is None else (sums / n).tolist()


def _within(
    session: Session,
    model: Any,
    way: str,
    least: int,
    base: dict[str, Any],
    tolerance: Tolerance,
    lines: Sequence[Sequence[float]] | None,
) -> TokenSchedule:
    """Return the schedule that removes most of those whose validation lies within the tolerance."""
    chosen = find_schedule(session, model, way, 0.0, least)
    for level in LEVELS:
        schedule = find_schedule(session, model, way, level, least)
        set_schedule(model, schedule if lines is None else schedule.forecasting(lines))
        found = measure_split(session, model, VALIDATION)
        if _is_below(session, found, base, tolerance):
            break
        chosen = schedule
    set_schedule(model, None)
    return chosen


def _is_below(session: Session, found: Any, base: Any, tolerance: Tolerance | None) -> bool:
    """Return whether a model loses more than the tolerance against the base."""
    name = session.task.metric
    metric = metrics.load(name)
    lowest = metric.score(base[name])
    lowest -= allowed_drop(tolerance or 0.0, lowest, metric.log) + 1e-9
    return found[name] is None or metric.score(found[name]) < lowest
