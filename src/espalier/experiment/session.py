"""The workbench: a model, a task and its three parts as batches, ready to be scored and measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import tasks
from ..architectures.table import in_order
from ..architectures.table import sites as find_sites
from ..core.batches import Batches
from ..core.errors import EspalierError
from ..core.log import log
from ..engine.cache import BUDGET, Replay
from ..engine.precision import arithmetic, resolved
from ..evaluation.predictions import Answers, answer
from ..io.digest import of_weights
from ..io.json_file import read_json
from ..storage.resolve import config_of, weights_of
from ..tasks import Examples, Task
from ..tasks.batches import batched, blocks, encode, language_batches, longest

LENGTH = 128


@dataclass(frozen=True)
class Bench:
    """What every experiment needs. The three parts share no example."""

    name: str
    model: Any
    tokenizer: Any
    task: Task
    target: str  # heads, neurons or weights
    calibration: Batches
    validation: Batches
    test: Batches
    calibrated_on: Examples
    length: int
    calibrations: dict[str, Batches] = field(default_factory=dict)  # of criteria with data of their own
    precision: str = "fp32"
    cache: int = 2 * BUDGET  # bytes that may be spent on not computing things twice
    also: tuple[str, ...] = ()  # of weights: embeddings, head, norms beside the blocks
    before: tuple[str, ...] = ()  # those that somebody pruned before
    stored: torch.dtype = torch.float32  # what the model came in; here it is fp32

    def arithmetic(self) -> AbstractContextManager[object]:
        return arithmetic(self.precision, self.model.device.type)

    def scored_is_measured(self, criterion: str) -> bool:
        """Whether a criterion scores the very examples that validation is made of."""
        return (
            criterion not in self.calibrations
            and self.calibrated_on == self.task.validation
            and all("labels" in batch for batch in self.calibration)
        )

    def calibration_of(self, criterion: str) -> Batches:
        return self.calibrations.get(criterion, self.calibration)

    @cached_property
    def sites(self) -> list[Any]:
        return find_sites(self.model, self.target, **dict.fromkeys(self.also, True))

    @property
    def outside(self) -> dict[str, Any]:
        """What a training must know of embeddings, head and norms, so that what went stays away."""
        return {"also": self.also, "before": self.before}

    def told_outside(self) -> dict[str, Any]:
        """The same for the plan of what is made here."""
        named = in_order((*self.also, *self.before))
        return {"also": list(named)} if named else {}

    @contextmanager
    def as_it_came(self, model: Any) -> Iterator[Any]:
        """Inside, a model has the dtype that this one was stored in, for saving; then its numbers in fp32."""
        try:
            yield model.to(self.stored)
        finally:
            model.float()

    def evaluate(self, model: Any, part: str, begin: Any = None) -> Answers:
        with self.arithmetic():
            return answer(model, getattr(self, part), self.task.kind, begin)

    def metrics(self, answers: Answers, part: str) -> dict[str, float]:
        return answers.metrics(self.task.kind, self.truth(part))

    def score(self, model: Any, part: str) -> float:
        """The task's own metric, of one pass."""
        return self.metrics(self.evaluate(model, part), part)[self.task.metric]

    def truth(self, part: str) -> np.ndarray | None:
        """The answers of a part, in the order of its examples."""
        labels = getattr(self.task, part).labels
        return None if labels is None else np.array(labels, dtype=float)

    @cached_property
    def fingerprint(self) -> str:
        """Of the weights: another model under the same name is another experiment."""
        return of_weights(self.model)


def open_task(name: str, **options: Any) -> Task:
    """The task, and a word on how its parts were made."""
    task = tasks.load(name, **options)
    tell_notes(task)
    return task


def tell_notes(task: Task) -> None:
    for note in task.notes:
        log.info("%s: %s", task.name, note)


def warn_of_another_split(model: str, task: str, split_seed: int) -> None:
    """A model that was trained here on another split of the same task has seen some of the test part."""
    record = Path(model) / "training.json"
    told = read_json(record).get("origin", {}) if record.is_file() else {}
    if told.get("task") == task and told.get("split_seed", split_seed) != split_seed:
        log.warning(
            "%s was trained on %s with --split-seed %s: with another one, test texts are training texts",
            model,
            task,
            told["split_seed"],
        )


def pruned_before(model: str) -> tuple[str, ...]:
    """What beside the blocks was pruned in a folder, as its plan tells: zeros alone would not."""
    path = Path(model) / "plan.json"
    told = read_json(path).get("origin") if path.is_file() else None
    named = told.get("also") if isinstance(told, dict) else None
    return in_order(map(str, named)) if isinstance(named, list) else ()


def stored_dtype(model: str, *, trust_remote_code: bool = False) -> torch.dtype:
    """What a model's config says its weights are stored in; fp32 if nothing, or where they are mixed."""
    path = weights_of(model, trust_remote_code=trust_remote_code)
    plan = Path(path) / "plan.json"
    told = read_json(plan).get("dtypes") if plan.is_file() else None
    if isinstance(told, dict) and len(told) > 1:
        return torch.float32
    config = config_of(path, trust_remote_code=trust_remote_code, types=False)
    found = getattr(config, "dtype", None)
    return found if found in (torch.float16, torch.bfloat16) else torch.float32


def short_name(model: str) -> str:
    """A model's name without the path of a folder: it goes into files that are passed on."""
    return Path(model).resolve().name if Path(model).exists() else model


def open_model(
    name: str,
    task: Task,
    *,
    trust_remote_code: bool = False,
    new_head: int | None = None,
    device_map: str | None = None,
) -> tuple[Any, Any]:
    """A model that can answer the task, in fp32, and its tokenizer; `device_map` spreads it over devices.

    No head for the task, or another, is an error, unless `new_head` is a seed to draw a new one by.
    """
    import transformers

    auto = {
        "classification": transformers.AutoModelForSequenceClassification,
        "regression": transformers.AutoModelForSequenceClassification,
        "language": transformers.AutoModelForCausalLM,
    }[task.kind]
    path = weights_of(name, trust_remote_code=trust_remote_code)
    head: dict[str, Any] = {}
    if new_head is not None:
        torch.manual_seed(new_head)
        head = {"ignore_mismatched_sizes": True, **_head_for(task)}
    try:
        model, info = auto.from_pretrained(
            path,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=trust_remote_code,
            **head,
            **({"device_map": device_map} if device_map else {}),
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except EspalierError:
        raise
    except Exception as error:  # a checkpoint can be wrong in more ways than there are errors for
        first = " ".join(str(error).split()) or type(error).__name__
        raise EspalierError(f"cannot load {name}: {first}") from error
    _check_head(name, model, info, new=new_head is not None)
    _align(model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if model.config.get_text_config().pad_token_id is None:
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return model.eval(), tokenizer


def _head_for(task: Task) -> dict[str, Any]:
    """What a config must say for the model to answer the task."""
    if task.kind == "language":
        return {}
    if task.kind == "regression":
        return {"num_labels": 1}
    classes = dict(enumerate(task.classes))
    names = {name: i for i, name in classes.items()}
    return {"num_labels": len(classes), "id2label": classes, "label2id": names}


def _align(model: torch.nn.Module) -> None:
    """Give weights that lie as their file has them memory of their own.

    Products of matrices round differently by where a matrix begins, and a copy begins elsewhere: the same
    model would give other last digits in one process than in another.
    """
    for p in model.parameters():
        if p.device.type == "cpu" and p.data_ptr() % 64:
            p.data = p.data.clone()


def _check_head(name: str, model: Any, info: dict[str, Any], new: bool) -> None:
    """Only a head may be new, and only where one is to be trained."""
    missing = sorted(info["missing_keys"])
    if missing and not new:
        raise EspalierError(
            f"{name} has no trained head for this task ({', '.join(missing[:3])} missing), so its answers "
            f"would be noise. Train one first: espalier train {name} --task TASK -o FOLDER"
        )
    odd = sorted(str(key[0] if isinstance(key, tuple) else key) for key in info["mismatched_keys"])
    body = [key for key in odd if key.startswith(f"{model.base_model_prefix}.")]
    if body:
        raise EspalierError(f"cannot load {name}: {body[0]} has another shape than its config says")
    if odd or missing:
        log.info("new, to be learned: %s", ", ".join(sorted({*odd, *missing})))


def batches_of(
    examples: Examples,
    tokenizer: Any,
    kind: str,
    *,
    length: int,
    size: int | None = None,
    upto: int | None = None,
) -> Batches:
    """Examples as batches with their answers; of running text, at most `upto` blocks."""
    if kind == "language":
        return language_batches(blocks(examples, tokenizer, length=length)[:upto], tokenizer)
    rows = encode(examples, tokenizer, length=length, special=True)
    long = sum(len(row["input_ids"]) == length for row in rows)
    if long:
        log.info("%d of %d texts reach %d tokens and may be cut off", long, len(rows), length)
    labels = examples.labels
    if labels is not None and kind == "classification":
        labels = tuple(int(label) for label in labels)
    return batched(rows, tokenizer, labels, size=size)


def bench(
    name: str,
    model: Any,
    tokenizer: Any,
    task: Task,
    *,
    target: str = "heads",
    calibration: int | None = 256,
    length: int = LENGTH,
    seed: int = 0,
    batch: int | None = None,
    most: int | None = None,
    own: Mapping[str, Examples] | None = None,
    precision: str = "fp32",
    cache: int = 2 * BUDGET,
    also: tuple[str, ...] = (),
    before: tuple[str, ...] = (),
    stored: torch.dtype = torch.float32,
) -> Bench:
    """Put it together: `calibration` examples of train, drawn by a seed; with `batch`, so many a batch.

    `most` blocks of running text are measured on, in each part. `own` are calibration examples of criteria
    that do not share those. `cache` bytes are spent on passes that begin where the model changed.
    """
    task = _agreed(task, model)
    drawn = task.train.sample(calibration, seed) if task.kind != "language" else task.train
    length = min(length, longest(model, tokenizer))

    def made(examples: Examples, size: int | None = None, upto: int | None = most) -> Batches:
        return batches_of(examples, tokenizer, task.kind, length=length, size=size, upto=upto)

    scored = _on(model, made(drawn, batch, calibration))
    scored.memory = Replay(cache // 2, graphs=True)
    return Bench(
        name=name,
        model=model,
        tokenizer=tokenizer,
        task=task,
        target=target,
        calibration=scored,
        validation=made(task.validation),
        test=made(task.test),
        calibrated_on=drawn,
        length=length,
        calibrations={name: _on(model, made(each)) for name, each in (own or {}).items()},
        precision=resolved(precision, model.device.type),
        cache=cache,
        also=also,
        before=before,
        stored=stored,
    )


def _on(model: Any, batches: Batches) -> Batches:
    """Criteria give their batches to the model as they are."""
    for batch in batches:
        batch.update({name: value.to(model.device) for name, value in batch.items()})
    return batches


def _agreed(task: Task, model: Any) -> Task:
    """The task in the model's own numbering of the classes, where both have names for them."""
    if task.kind == "regression" and model.config.num_labels != 1:
        raise EspalierError(
            f"the task's answers lie on a scale, the model answers {model.config.num_labels} classes. "
            "Train one for it: espalier train MODEL --task TASK -o FOLDER"
        )
    if task.kind != "classification":
        return task
    theirs = {str(name).lower(): int(i) for name, i in (model.config.label2id or {}).items()}
    ours = [name.lower() for name in task.classes]
    if set(ours) <= set(theirs) and not all(name.isdigit() for name in ours):
        order = [theirs[name] for name in ours]
        names = {i: name for name, i in theirs.items()}
        return replace(
            task,
            classes=tuple(names[i] for i in sorted(names)),
            train=_renumbered(task.train, order),
            validation=_renumbered(task.validation, order),
            test=_renumbered(task.test, order),
        )
    if not all(name.lstrip("-").isdigit() for name in ours):
        log.warning(
            "the classes are numbered %s; the model calls its own %s. If the order differs, name them alike",
            ", ".join(f"{i} {name}" for i, name in enumerate(task.classes)),
            ", ".join(f"{i} {name}" for name, i in sorted(theirs.items(), key=lambda x: x[1])),
        )
    if len(ours) > model.config.num_labels:
        raise EspalierError(
            f"the task has {len(ours)} classes, the model answers {model.config.num_labels}. "
            "Train one for it: espalier train MODEL --task TASK -o FOLDER"
        )
    return task


def _renumbered(examples: Examples, order: list[int]) -> Examples:
    if examples.labels is None:
        return examples
    return replace(examples, labels=tuple(order[int(label)] for label in examples.labels))
