"""A session: a model, a task and its splits as batches, ready to be scored and measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack

import numpy as np
import torch

from .. import tasks
from ..architectures.sites import also_in_order, check_also
from ..architectures.sites import sites as find_sites
from ..core import distributed
from ..core.batches import SCORES, Batches
from ..core.errors import DataError, UnknownNameError
from ..core.progress import OnProgress, Progress, ignore
from ..core.terminal import log
from ..core.types import PreTrainedModel, PreTrainedTokenizerBase
from ..engine.cache import BUDGET, ActivationCache
from ..engine.dtypes import in_dtype, round_weights
from ..engine.memory import memory_length
from ..engine.precision import FP32, arithmetic, check_precision, resolved
from ..evaluation import metrics
from ..evaluation.predictions import Predictions, predict
from ..io.files import fingerprint_weights
from ..tasks import Examples, Task
from ..tasks.batches import UNLIMITED, batches_of, check_known, max_tokens
from ..tasks.task import SCALES, SIMILARITY
from .classes import CHOSEN, check_labels, in_model_numbering, open_task
from .embedder import as_similarity, batch_maker
from .exported import open_any
from .model import OpenedModel, is_language_model, open_model, original_of, warn_about_other_split

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

AnyModel: TypeAlias = "str | Path | PreTrainedModel"
AnyTask: TypeAlias = "str | Path | Task | Dataset | DatasetDict"
VALIDATION, TEST = "validation", "test"
GIB = 2**30


class SessionOptions(TypedDict, total=False):
    """Options that every verb with a model and a task takes."""

    tokenizer: PreTrainedTokenizerBase | str | None  # of a live model; or the folder of one
    text: str | None  # the column with the text
    pair: str | None  # the column with the second text of a pair
    label: str | None  # the column with the truth
    metric: str | None  # by which models are compared, if not the usual one of the task
    kind: str | None  # classification, regression, similarity, language or unlabelled, if not as it looks
    calibration: int | None  # training examples to score by
    validation: int | None  # at most so many examples to choose by
    test: int | None  # at most so many examples to report on
    max_length: int  # tokens; longer texts are cut off
    seed: int  # of samples and random orders
    split_seed: int  # of splits that the data does not have
    calibration_batch_size: int | None  # examples a scoring batch, in order; None: by length
    precision: str  # fp32, bf16 or auto
    cache: float  # GiB of activations kept between passes
    device_map: str | None
    trust_remote_code: bool


@dataclass(frozen=True)
class Session:
    """What every experiment needs. Calibration, validation and test share no example."""

    name: str
    model: Any
    tokenizer: Any
    task: Task
    target: str  # heads, neurons, both with a comma, or weights
    calibration: Batches
    validation: Batches
    test: Batches
    calibrated_on: Examples
    max_length: int
    seed: int = 0
    split_seed: int = 0
    columns: dict[str, str] = field(default_factory=dict)  # of the task, its kind and metric, as named
    own_calibration: dict[str, Batches] = field(default_factory=dict)  # of criteria with data of their own
    draw: Callable[[int], Batches] | None = None  # so many training examples, as calibration is drawn
    precision: str = FP32
    cache: int = 2 * BUDGET  # bytes
    also: tuple[str, ...] = ()  # of weights: embeddings, head, norms
    pruned_also: tuple[str, ...] = ()  # those that were pruned before
    stored: torch.dtype = torch.float32  # what the model was stored in; here it is fp32
    opened: torch.dtype | None = None  # the same, where what is made of it is stored in another dtype
    unlabelled: bool = False  # whether the truth is what the model predicts
    folder: Path | None = None
    trust_remote_code: bool = False

    @cached_property
    def sites(self) -> list[Any]:
        return list(find_sites(self.model, *self.target.split(","), also=self.also))

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the weights: another model under the same name is another experiment."""
        return fingerprint_weights(self.model)

    @property
    def units(self) -> int:
        return sum(site.units for site in self.sites)

    @property
    def held(self) -> dict[str, Any]:
        """What a training must know of embeddings, head and norms, so that pruned weights stay pruned."""
        return {"also": self.also, "before": self.pruned_also}

    def origin(self) -> dict[str, Any]:
        """Where a model made in this session comes from, for its record."""
        named = also_in_order((*self.also, *self.pruned_also))
        found = {"task": self.task.name, "split_seed": self.split_seed, "notes": list(self.task.notes)}
        found |= {"also": list(named)} if named else {}
        original = original_of(self.folder)
        return {"model": self.name, **found, **({"original": original} if original else {})}

    def batches(self, split: str) -> Batches:
        return getattr(self, split)  # type: ignore[no-any-return]

    def arithmetic(self) -> AbstractContextManager[object]:
        return arithmetic(self.precision, self.model.device.type)

    def calibration_of(self, criterion: str) -> Batches:
        return self.own_calibration.get(criterion, self.calibration)

    def scores_validation(self, criterion: str) -> bool:
        """Whether a criterion is scored on exactly the validation examples."""
        return (
            criterion not in self.own_calibration
            and self.calibrated_on == self.task.validation
            and all({"labels", SCORES} & set(batch) for batch in self.calibration)
        )

    def predict(self, model: Any, split: str, on_batch: Callable[[int], None] | None = None) -> Predictions:
        with self.arithmetic():
            return predict(model, self.batches(split), self.task.kind, on_batch)

    def truth(self, split: str) -> np.ndarray | None:
        """The truth of a split, in the order of its examples."""
        labels = getattr(self.task, split).labels
        return None if labels is None else np.array(labels, dtype=float)

    def metrics(self, predictions: Predictions, split: str) -> dict[str, float | None]:
        return predictions.metrics(self.task.kind, self.truth(split))

    def check_metric(self) -> None:
        """Raise if the task's metric is undefined on a split: models cannot be compared by it."""
        for split in (VALIDATION, TEST):
            truth, metric = self.truth(split), metrics.load(self.task.metric)
            if truth is not None and metric.defined(truth, truth) is None:
                raise DataError(f"{metric.name} is undefined on {split} data: {self.constant(split)}")

    def constant(self, split: str) -> str:
        """Say why a metric is undefined on a split."""
        truth = self.truth(split)
        value = "" if truth is None or not len(truth) else f", {truth[0]:g}"
        return f"all {0 if truth is None else len(truth)} labels are equal{value}"

    def score(self, model: Any, split: str) -> float | None:
        """Return the task's own metric, by one pass; None where it is undefined."""
        return self.metrics(self.predict(model, split), split)[self.task.metric]

    def round_to_stored(self, model: Any) -> bool:
        """Round weights as they will be saved, so that these are measured; return whether any changed."""
        return round_weights(model, self.stored)

    def in_stored_dtype(self, model: Any) -> AbstractContextManager[Any]:
        """Give a model the dtype that it is saved in; afterwards it is fp32 again."""
        return in_dtype(model, self.stored)


def open_session(
    model: AnyModel,
    task: AnyTask,
    *,
    target: str = "heads",
    also: tuple[str, ...] = (),
    own_calibration: Mapping[str, Examples] | None = None,
    name: str | None = None,
    exported: bool = False,
    unlabelled: bool = False,
    texts_suffice: bool = False,
    on_progress: OnProgress = ignore,
    **options: Unpack[SessionOptions],
) -> Session:
    """Load the task, then the model, which may be `exported`, and put the splits into batches.

    A task may be `unlabelled` where nothing is measured, or after `label_by_model`; its training examples
    alone where `texts_suffice`.
    """
    check_options(options)
    if (precision := options.get("precision", FP32)) != FP32:
        check_precision(precision)
    device = distributed.join() if distributed.is_launched() else None
    seed, split_seed = options.get("seed", 0), options.get("split_seed", 0)
    on_progress(Progress(f"reading {tasks.name_of(task)}"))
    code = options.get("trust_remote_code", False)
    running = not isinstance(task, Task) and is_language_model(model, trust_remote_code=code)
    found = open_task(task, options, running, texts_suffice)
    if not unlabelled:
        check_labels(found)
    if found.kind in SCALES:  # scores: an embedder compares the two texts of a pair
        found = as_similarity(found, model, trust_remote_code=code)
    found = found.sized(validation=options.get("validation", 1000), test=options.get("test", 5000), seed=seed)
    on_progress(Progress(f"loading {model if isinstance(model, (str, Path)) else type(model).__name__}"))
    how: Any = dict(tokenizer=options.get("tokenizer"), device_map=options.get("device_map"))
    opened = (open_any if exported else open_model)(model, found, trust_remote_code=code, **how)
    if options.get("device_map") is None and (device is not None or torch.cuda.is_available()):
        opened.model.to(device or "cuda")  # type: ignore[arg-type]
    warn_about_other_split(opened.folder, found.name, split_seed)
    session = make_session(opened, found, target, also, own_calibration or {}, options)
    check_also(session.model, session.also)
    if session.precision != FP32:
        log.info("computing in %s", session.precision)
    return session if name is None else replace(session, name=name)


def check_options(options: Mapping[str, object]) -> None:
    """Raise for an option that would be ignored."""
    for name in options:
        if name not in SessionOptions.__annotations__:
            raise UnknownNameError("option", name, SessionOptions.__annotations__, name)


def make_session(
    opened: OpenedModel,
    task: Task,
    target: str = "heads",
    also: tuple[str, ...] = (),
    own_calibration: Mapping[str, Examples] | None = None,
    options: SessionOptions | None = None,
) -> Session:
    """Put a model and a task together: `calibration` examples of train are drawn by the seed."""
    options, model, tokenizer = options or {}, opened.model, opened.tokenizer
    task = in_model_numbering(task, model) if task.labelled else task
    count, seed, cache = options.get("calibration", 256), options.get("seed", 0), options.get("cache", 2.0)
    precision = options.get("precision", FP32)
    pairs = task.kind == SIMILARITY
    make, longest = batch_maker(model, opened.folder) if pairs else (batches_of, UNLIMITED)
    max_length = min(options.get("max_length", 128), max_tokens(model, tokenizer), longest)

    def batched(examples: Examples, **how: Any) -> Batches:
        found = make(examples, tokenizer, task.kind, max_length=max_length, **how)
        check_known(model, max(int(batch["input_ids"].max()) for batch in found))
        return found

    def drawn(count: int | None) -> Examples:
        return task.train if task.kind == "language" else task.train.sample(count, seed)

    def draw(count: int | None) -> Batches:
        size = options.get("calibration_batch_size")
        return _on_device(model, batched(drawn(count), size=size, upto=count))

    stream = task.kind == "language" and memory_length(model) > 0  # blocks to score by begin anew
    validation, test = options.get("validation", 1000), options.get("test", 5000)
    scored = draw(count)
    scored.cache = ActivationCache(int(cache * GIB) // 2, graphs=True)
    return Session(
        name=opened.name,
        model=model,
        tokenizer=tokenizer,
        task=task,
        target=target,
        calibration=scored,
        validation=batched(task.validation, upto=validation, stream=stream),
        test=batched(task.test, upto=test, stream=stream),
        calibrated_on=drawn(count),
        draw=draw,
        max_length=max_length,
        seed=seed,
        split_seed=options.get("split_seed", 0),
        columns={key: str(options[key]) for key in CHOSEN if options.get(key)},  # type: ignore[literal-required]
        own_calibration={
            name: _on_device(model, batched(examples, upto=validation))
            for name, examples in (own_calibration or {}).items()
        },
        precision=FP32 if precision == FP32 else resolved(precision, model.device.type),
        cache=int(cache * GIB),
        also=also,
        pruned_also=opened.pruned_also,
        stored=opened.stored,
        folder=opened.folder,
        trust_remote_code=options.get("trust_remote_code", False),
    )


def _on_device(model: Any, batches: Batches) -> Batches:
    for batch in batches:  # criteria give them to the model without moving them
        batch.update({name: value.to(model.device) for name, value in batch.items()})
    return batches
