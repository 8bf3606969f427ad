"""What a comparison or a training would do, and how long it should take by passes measured here."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..analysis.record import read_measured
from ..core.batches import model_inputs
from ..core.progress import OnProgress, Progress, ignore
from ..engine.passes import frozen_eval
from ..engine.products import fast_products
from ..io.paths import RUN
from ..training.data import StreamData, TrainingData, prepare_data
from .levels import trained_levels
from .method import AUTO, Method
from .recovery import Recovery
from .scorer import score_session
from .session import TEST, VALIDATION, Session
from .walk import unit_levels

SECONDS = 2.0  # that measuring passes may take
FEW = 3  # training batches that are timed
T = TypeVar("T")


def estimate_comparison(
    session: Session,
    methods: Sequence[Method],
    remove: Sequence[float],
    recovery: Recovery | None,
    folder: Path | None,
    on_progress: OnProgress = ignore,
) -> dict[str, Any]:
    """Return how many rows each method would add, its scorings, and the seconds of both, unpruned.

    Models become smaller on the way, so heads and neurons take less than that.
    """
    on_progress(Progress("timing a pass"))
    token = _seconds_per_token(session)
    passes = {split: token * sum(map(_size, session.batches(split))) for split in (VALIDATION, TEST)}
    trained = trained_levels(session, remove, recovery)
    training = _training_seconds(session, recovery) if recovery and trained else 0.0
    scored: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    for method in methods:
        weights, trials = session.target == "weights", len(method.numbers())
        levels = len(remove) if weights else len(unit_levels(session, method, remove))
        shot = 0 if method.learned else levels
        trainings = (0 if method.learned else len(trained)) + len(trained) * bool(
            recovery and recovery.gradual(method)
        )
        scorings = 0 if method.learned else _scorings(session, method, remove)
        if scorings and method.criterion not in scored:
            on_progress(Progress("timing a scoring", message=method.criterion))
            scored[method.criterion] = _clock(lambda method=method: score_session(session, method))  # type: ignore[misc]
        each = shot * passes[VALIDATION] + (shot > 0) * passes[TEST]
        each += trainings * (training + sum(passes.values()))
        each += scorings * scored.get(method.criterion, 0.0)
        count = trials * (shot + (shot > 0) + 2 * trainings)
        rows.append(
            {"method": method.label, "rows": count, "scorings": trials * scorings, "seconds": trials * each}
        )
    there = len(read_measured(folder)) if folder and (folder / RUN).exists() else 0
    return {
        "dry_run": True,
        "model": session.name,
        "task": session.task.name,
        "target": session.target,
        "units": session.units,
        "folder": folder and str(folder),
        "methods": rows,
        "rows": 2 + sum(row["rows"] for row in rows),
        "rows there": there,
        "pass": passes[VALIDATION],
        "seconds": sum(passes.values()) + sum(row["seconds"] for row in rows),
    }


def _scorings(session: Session, method: Method, remove: Sequence[float]) -> int:
    """Return how often a method scores the model in one trial."""
    if not method.rescore or session.target == "weights":
        return 1
    last = max(unit_levels(session, method, remove), default=0)
    return -(-last // (1 if method.step == AUTO else int(method.step)))


def spread(items: Sequence[T]) -> list[T]:
    """Return the items from the middle of the list outwards: half, quarters, eighths, and so on."""
    order: dict[int, None] = {}
    step = len(items)
    while len(order) < len(items):
        order |= dict.fromkeys(i for i in range(step // 2, len(items), max(1, step)) if i not in order)
        step //= 2
    return [items[i] for i in order]


def _size(batch: Mapping[str, Any]) -> int:
    """Return the tokens of a batch with their padding, or the numbers of its first tensor."""
    return next((value.numel() for value in batch.values() if isinstance(value, torch.Tensor)), 0)


def _seconds_per_token(session: Session) -> float:
    """Time passes over validation batches, until they have taken a while.

    Batches are grouped by length, so those of all lengths are timed in turn.
    """
    spent, seen, model = 0.0, 0, session.model
    for number, batch in enumerate(spread(sorted(session.batches(VALIDATION), key=_size))):
        inputs = {name: v.to(model.device) for name, v in model_inputs(batch, labels=False).items()}
        with session.arithmetic(), frozen_eval(model), torch.inference_mode():
            seconds = _clock(lambda inputs=inputs: model(**inputs))  # type: ignore[misc]
        if number or len(session.batches(VALIDATION)) == 1:  # the first pass warms up
            spent, seen = spent + seconds, seen + _size(batch)
        if spent > SECONDS:
            break
    return spent / max(1, seen)


def _training_seconds(session: Session, recovery: Recovery) -> float:
    examples, kind = session.task.train.sample(recovery.examples, session.seed), session.task.kind
    length, size = session.max_length, recovery.batch_size
    data = prepare_data(session.model, session.tokenizer, examples, kind, length, size)
    steps, each = time_steps(session.model, data, recovery.batch_size, session.seed)
    return recovery.epochs * steps * each


def describe_training(
    model: str,
    task: str,
    folder: Path | None,
    trained: Any,
    data: TrainingData | StreamData,
    *,
    examples: int,
    epochs: int,
    batch_size: int,
    **_: Any,
) -> dict[str, Any]:
    """Return the steps of a training, and the seconds of their passes."""
    steps, each = time_steps(trained, data, batch_size, 0)
    facts = {"dry_run": True, "model": model, "task": task, "folder": folder and str(folder)}
    facts |= {"examples": examples, "epochs": epochs, "steps": epochs * steps, "step": each}
    return facts | {"seconds": epochs * steps * each}


def time_steps(model: Any, data: TrainingData | StreamData, batch_size: int, seed: int) -> tuple[int, float]:
    """Return the steps of an epoch, and the seconds of a forward and a backward pass of a batch.

    Batches are of similar lengths: a short, a long and one of the middle are timed.
    """
    batches = data.order(batch_size, seed, 0)
    timed = _quantiles(data, batches)
    found = []
    for numbers in [timed[0], *timed]:  # the first pass warms up
        batch = {name: value.to(model.device) for name, value in data.batch(numbers).items()}

        @fast_products()
        def step(batch: dict[str, Any] = batch) -> None:
            model(**batch).loss.backward()

        found.append(_clock(step))
        model.zero_grad(set_to_none=True)
    return len(batches), sum(found[1:]) / len(timed)


def _quantiles(data: TrainingData | StreamData, batches: Sequence[list[int]]) -> list[list[int]]:
    """Return the middle one of the shortest batches, of those of middle length and of the longest."""
    rows = getattr(data, "rows", None)
    if rows is not None:
        batches = sorted(batches, key=lambda b: len(b) * max(len(rows[i]["input_ids"]) for i in b))
    return [batches[(2 * part + 1) * len(batches) // (2 * FEW)] for part in range(FEW)]


def _clock(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
