"""Training on a session's task, with validation after every epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import DataError
from ..core.progress import OnProgress, Progress, ignore
from ..engine.memory import memory_length
from ..engine.precision import resolved
from ..engine.products import fast_products
from ..evaluation.predictions import predict
from ..tasks import Task, name_of
from ..tasks.batches import batches_of, max_tokens
from ..training.callbacks import Callback, count_zeros
from ..training.data import prepare_data
from ..training.loop import LoopOptions, train
from .classes import in_model_numbering, open_task
from .estimate import describe_training
from .model import is_language_model, open_model
from .new_model import is_new, make_model, take_sizes
from .session import Session, SessionOptions, check_options

if TYPE_CHECKING:
    from .session import AnyModel, AnyTask

# of a training that prunes; gates have a `warmup` of their own
LOOP = (
    *("lr", "batch_size", "examples", "track", "overwrite"),
    *sorted({*LoopOptions.__annotations__} - {"warmup"}),
)


class TrainOptions(SessionOptions, LoopOptions, total=False):
    """Options of a training: of the data, of the loop, and of a new model."""

    vocabulary: int | None  # words of a new model: the most frequent ones; None: all


def train_model(
    model: AnyModel,
    task: AnyTask,
    folder: Path | None,
    options: TrainOptions,
    *,
    examples: int | None = None,
    dry_run: bool = False,
    on_progress: OnProgress = ignore,
    **training: Any,
) -> tuple[Any, dict[str, Any]]:
    """Fine-tune a model with a new head if it needs one. Returns the model and the history.

    With a folder the model is saved there, and an interrupted training resumes. A model type or a config
    without weights is trained from scratch; values of its config are options then, such as hidden_size.
    """
    given: Any = dict(options)
    loop = take_loop(given)
    vocabulary = given.pop("vocabulary", None)
    sizes = take_sizes(model, given, SessionOptions.__annotations__)
    options = given
    check_options(options)
    seed, validation = options.get("seed", 0), options.get("validation", 1000)
    max_length = options.get("max_length", 128)
    on_progress(Progress(f"reading {name_of(task)}"))
    code = options.get("trust_remote_code", False)
    running = not isinstance(task, Task) and is_language_model(model, trust_remote_code=code)
    found = open_task(task, options, running).sized(validation=validation, test=None, seed=seed)
    if found.train.labels is None and found.kind != "language":
        raise DataError(f"the training examples of {found.name} have no labels to train on")
    if len(found.classes) == 1:
        raise DataError(
            f"{found.name} has a single class: every label is {found.classes[0]!r}, so there is nothing to "
            "learn. Give texts of two classes or more, or name another column with `label`"
        )
    new = is_new(model)
    on_progress(Progress("making the model" if new else "loading the model"))
    code = options.get("trust_remote_code", False)
    tokenizer = options.get("tokenizer")
    if new:
        opened = make_model(model, found, sizes=sizes, vocabulary=vocabulary, tokenizer=tokenizer, seed=seed)
    else:
        opened = open_model(model, found, tokenizer=tokenizer, trust_remote_code=code, new_head=seed)
    if not isinstance(model, (str, Path)):  # its head is kept, and with it the numbers of its classes
        found = in_model_numbering(found, opened.model)
    split_seed = options.get("split_seed", 0)
    origin = {"model": opened.name, "task": found.name, "split_seed": split_seed, "notes": list(found.notes)}
    learned = found.draw_train(examples, seed)
    if dry_run:
        on_progress(Progress("timing a step"))
        size = training["batch_size"]
        data = prepare_data(opened.model, opened.tokenizer, learned, found.kind, max_length, size)
        about: Any = (opened.name, found.name, folder, opened.model, data)
        return opened.model, describe_training(*about, examples=len(learned), **training)
    history = train(
        opened.model,
        opened.tokenizer,
        learned,
        folder=folder,
        kind=found.kind,
        max_length=max_length,
        seed=seed,
        precision=resolved(options.get("precision", "fp32"), opened.model.device.type),
        origin=origin,
        evaluate=_evaluation(found, opened.model, opened.tokenizer, max_length, validation),
        on_progress=on_progress,
        **training,
        **loop,
    )
    facts = {"model": opened.name, "task": found.name, "examples": len(learned), **history}
    return opened.model, facts | {"folder": folder and str(folder)}


def take_loop(options: Any) -> dict[str, Any]:
    """Take the options of the training loop out of others."""
    return {name: options.pop(name) for name in LoopOptions.__annotations__ if name in options}


def train_session(
    session: Session,
    folder: Path | None,
    origin: Mapping[str, Any],
    callback: Callback,
    *,
    examples: int | None = None,
    on_progress: OnProgress = ignore,
    **options: Any,
) -> dict[str, Any]:
    """Train a session's model in place under a callback that prunes it or holds its zeros."""
    matrices = session.sites if session.target == "weights" else []  # before a callback wraps them

    def evaluate(model: Any) -> dict[str, float | None]:
        found = {f"validation {session.task.metric}": session.score(model, "validation")}
        return found | ({"sparsity": count_zeros(matrices)["zero"]} if matrices else {})

    return train(
        session.model,
        session.tokenizer,
        session.task.draw_train(examples, session.seed),
        folder=folder,
        kind=session.task.kind,
        max_length=session.max_length,
        seed=session.seed,
        precision=session.precision,
        origin=dict(origin),
        evaluate=evaluate,
        callback=callback,
        on_progress=on_progress,
        **options,
    )


def _evaluation(
    task: Task, model: Any, tokenizer: Any, max_length: int, most: int | None
) -> Callable[[Any], dict[str, float | None]] | None:
    """Return what is measured after every epoch; None without validation data."""
    split = task.validation
    if not len(split):
        return None
    length = min(max_length, max_tokens(model, tokenizer))
    stream = memory_length(model) > 0
    batches = batches_of(split, tokenizer, task.kind, max_length=length, upto=most, stream=stream)
    truth = None if split.labels is None else np.array(split.labels, dtype=float)

    @fast_products()
    def evaluate(model: Any) -> dict[str, float | None]:
        found = predict(model, batches, task.kind).metrics(task.kind, truth)
        return {f"validation {name}": value for name, value in found.items()}

    return evaluate
