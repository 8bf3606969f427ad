"""Models that embed texts: how one is recognised, and when a task is that of comparing embeddings."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..core.batches import Batches
from ..core.errors import DataError, EspalierError, FormatError
from ..core.terminal import log
from ..core.types import PreTrainedModel
from ..engine.embeddings import Embedder
from ..io.paths import is_exported
from ..storage.modules import has_modules, read_embedder
from ..storage.resolve import config_of, weights_path
from ..tasks import Examples, Task
from ..tasks.batches import UNLIMITED, batches_of
from ..tasks.tables import check_pairs
from ..tasks.task import SIMILARITY

CLASSIFIER = "ForSequenceClassification"
HEADS = re.compile(r"For[A-Z]|LMHead|DoubleHeads|ConditionalGeneration")  # in the name of a class with a head


def is_embedder(model: str | Path | PreTrainedModel, *, trust_remote_code: bool = False) -> bool:
    """Whether a model is to embed texts: sentence-transformers made its folder, or its class has no head."""
    if not isinstance(model, (str, Path)):
        config, names = getattr(model, "config", None), [type(model).__name__]
    else:
        try:
            exported = is_exported(model)
            path = str(model) if exported else weights_path(str(model), trust_remote_code=trust_remote_code)
            config = config_of(path, trust_remote_code=trust_remote_code, allow_type=False)
        except EspalierError:  # said when it is loaded
            return False
        names = list(config.architectures or ())
        if has_modules(path) and not any(name.endswith(CLASSIFIER) for name in names):
            return True  # a classifier that was trained from an embedder may still have them beside it
    bare = bool(names) and not any(HEADS.search(name) for name in names)
    return bare and not getattr(config, "is_encoder_decoder", False)


def as_similarity(task: Task, model: Any, *, trust_remote_code: bool = False) -> Task:
    """Return a task of scores as one of similarities if it has pairs and an embedder, else as it is.

    Scores become similarities from 0 to 1, by the lowest and the highest of the training examples; of
    validation examples if those have none.
    """
    pairs = all(split.pairs is not None for split in (task.train, task.validation, task.test))
    if task.kind == SIMILARITY:
        check_pairs(task.name, pairs)
    elif not pairs or not is_embedder(model, trust_remote_code=trust_remote_code):
        return task
    labels = task.train.labels or task.validation.labels  # training pairs may be texts alone
    if not labels or min(labels) == max(labels):
        raise DataError(f"the pairs of {task.name} have no scores, or all the same one")
    low, high = min(labels), max(labels)
    note = f"the cosine of two embeddings is compared with the scores, from {low:g} to {high:g} as 0 to 1"

    def scaled(split: Examples) -> Examples:
        return replace(split, labels=tuple((x - low) / (high - low) for x in split.labels or ()) or None)

    log.info("%s: %s", task.name, note)
    train, validation, test = (scaled(split) for split in (task.train, task.validation, task.test))
    metric = "spearman" if task.metric == "accuracy" else task.metric  # accuracy: none was named
    known: Any = {"kind": SIMILARITY, "metric": metric, "notes": (*task.notes, note)}
    return replace(task, train=train, validation=validation, test=test, **known)


def batch_maker(model: Any, folder: Path | None) -> tuple[Callable[..., Batches], int]:
    """Return what makes batches of pairs, and the most tokens that the model's folder allows.

    A folder of sentence-transformers names its pooling; without one it is the mean of the tokens.
    """
    embedder = read_embedder(folder or str(getattr(model.config, "_name_or_path", "") or ""))
    return partial(embedded_batches, embedder), embedder.max_length or UNLIMITED


def embedded_batches(embedder: Embedder, examples: Examples, *given: Any, **how: Any) -> Batches:
    """Return pairs as batches, each text as the model reads it; how alike they are is predicted."""
    if (embedder.prompt or embedder.lower) and examples.pairs is not None:
        texts, pairs = (tuple(map(embedder.reads, some)) for some in (examples.texts, examples.pairs))
        examples = replace(examples, texts=texts, pairs=pairs)
    found = batches_of(examples, *given, **how)
    found.loss, found.read = embedder.loss, embedder.similarities
    return found


def remove_pooler(name: str, model: Any, info: dict[str, Any]) -> None:
    """Remove a pooler that has no weights: embeddings do not read it. Raise if others are missing."""
    missing = sorted(info["missing_keys"])
    body = [key for key in missing if not key.startswith("pooler.")]
    shapes = sorted(str(key[0] if isinstance(key, tuple) else key) for key in info["mismatched_keys"])
    if body or shapes:
        raise FormatError(f"cannot load {name}: {(body + shapes)[0]} is missing, or has another shape", name)
    if missing:
        model.pooler = None
