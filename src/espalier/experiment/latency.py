"""Latency of models without a task: random tokens, all models interleaved in one run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..architectures.table import position_limit
from ..core.errors import InvalidValueError
from ..engine.memory import Memory, memory_length
from ..evaluation.latency import time_models
from ..io.files import reading
from ..storage.resolve import config_of, model_class, weights_path
from .assessment import count_model
from .model import check_holds_model, short_name

if TYPE_CHECKING:
    from .session import AnyModel


def measure_models(
    models: Sequence[AnyModel],
    against: AnyModel | None = None,
    *,
    batch_size: int = 1,
    max_length: int = 128,
    rounds: int = 20,
) -> dict[str, Any]:
    """Time and count models; `against` is the one that speed-ups are relative to."""
    if min(batch_size, max_length, rounds) < 1:
        raise InvalidValueError("`batch_size`, `max_length` and `rounds` are at least 1", "rounds")
    named: list[Any] = [*models, *([] if against is None else [against])]
    loaded = [_load(one) if isinstance(one, (str, Path)) else one for one in named]
    longest = min(position_limit(one) or max_length for one in loaded)
    if max_length > longest:
        raise InvalidValueError(
            f"`max_length` is {max_length}, but a model has positions for {longest} tokens", "max_length"
        )
    vocabulary = min(vocabulary_of(one) for one in loaded)
    ids = torch.randint(0, vocabulary, (batch_size, max_length), generator=torch.Generator().manual_seed(0))
    with ExitStack() as stack:  # a model with a memory goes on in one text: its memory is full
        for model in loaded:
            if memory_length(model):
                stack.enter_context(Memory().carried(model))
        found = time_models(loaded, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, rounds)
    base = found[-1].median if against is not None else None
    rows = []
    for one, model, latency in zip(named, loaded, found):
        folder = Path(one) if isinstance(one, (str, Path)) and Path(one).is_dir() else None
        name = short_name(str(one)) if isinstance(one, (str, Path)) else type(one).__name__
        times = {"median": latency.median, "low": latency.low, "high": latency.high}
        speedup = base / latency.median if base else None
        rows.append({"model": name, **times, "speedup": speedup, **count_model(model, folder, model.dtype)})
    settings = {"batch_size": batch_size, "max_length": max_length, "rounds": rounds}
    return {**settings, "threads": torch.get_num_threads(), "models": rows}


def _load(name: str | Path) -> Any:
    """Load any model in the dtype of its file."""
    import transformers

    check_holds_model(Path(name))
    path = weights_path(str(name))
    cls = model_class(config_of(path, allow_type=False).architectures) or transformers.AutoModel
    with reading(Path(name), "a model that can be loaded", Exception):  # each library has its own errors
        return cls.from_pretrained(path).eval()


def vocabulary_of(model: Any) -> int:
    """Return how many tokens a model knows; raise if it reads something else."""
    words = getattr(model.get_input_embeddings(), "num_embeddings", None)
    if words is None:
        raise InvalidValueError(
            f"{type(model).__name__} reads no tokens, so it cannot be timed on text", "model"
        )
    return int(words)
