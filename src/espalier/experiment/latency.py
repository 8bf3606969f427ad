"""Speed of models: random tokens, every model in every engine interleaved in one run, in several shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from ..architectures.table import position_limit
from ..core.errors import InvalidValueError, UnknownNameError
from ..core.progress import OnProgress, Progress, ignore
from ..engine.memory import Memory, memory_length
from ..evaluation.energy import joules_of
from ..evaluation.latency import time_models
from ..exporters.exported import open_exported
from ..exporters.folder import write_export
from ..exporters.memory import peak_memory
from ..io.paths import is_exported
from .assessment import count_model, measure_split
from .exported import tokenizer_of
from .exporter import load_any
from .latency_table import Shape, vocabulary_of
from .model import short_name
from .session import TEST, open_session

if TYPE_CHECKING:
    from .session import AnyModel, AnyTask

ENGINES = ("torch", "onnx", "openvino")
ENERGY_SECONDS = 0.5  # of passes whose energy is counted: the counters have a millisecond's resolution


@dataclass(frozen=True)
class Candidate:
    """One model in one engine."""

    name: str
    engine: str
    precision: str
    model: Any
    counts: dict[str, Any]
    given: AnyModel
    folder: Path | None  # what a fresh process can open


def measure_models(
    models: AnyModel | Sequence[AnyModel],
    against: AnyModel | None = None,
    *,
    engine: str | Sequence[str] = "torch",
    batch_size: int | Sequence[int] = 1,
    max_length: int | Sequence[int] = 128,
    rounds: int = 20,
    memory: bool = False,
    task: AnyTask | None = None,
    on_progress: OnProgress = ignore,
    **options: Any,
) -> dict[str, Any]:
    """Time and count models; `against` is the one that speed-ups are relative to, in the first engine."""
    engines = engine.split(",") if isinstance(engine, str) else list(engine)
    batch_sizes, max_lengths = _as_list(batch_size), _as_list(max_length)
    if not batch_sizes or not max_lengths or min(*batch_sizes, *max_lengths, rounds) < 1:
        raise InvalidValueError("`batch_size`, `max_length` and `rounds` are at least 1", "rounds")
    for name in engines:
        if name not in ENGINES:
            raise UnknownNameError("engine", name, ENGINES, "engine")
    if options and task is None:
        raise InvalidValueError(
            f"`{min(options)}` is about the examples of a `task`, and none is given", "task"
        )
    shapes = [Shape(batch, length) for batch in batch_sizes for length in max_lengths]
    with ExitStack() as opened:
        candidates: list[Candidate] = []
        for one in _as_list(models):
            on_progress(Progress("opening", message=_name(one)))
            candidates += opened.enter_context(_candidates(one, engines, options.get("tokenizer")))
        if against is not None:
            candidates += opened.enter_context(_candidates(against, engines[:1], options.get("tokenizer")))
        _check_lengths(candidates, max(max_lengths))
        extra = [_extra(one, shapes[-1], memory, task, options, on_progress) for one in candidates]
        rows = []
        for number, shape in enumerate(shapes):
            about = f"batch {shape.batch_size}, {shape.max_length} tokens"
            on_progress(Progress("timing", number, len(shapes), about))
            rows += _time(candidates, shape, rounds, extra, against is not None)
    settings = {"batch_size": batch_sizes, "max_length": max_lengths, "rounds": rounds}
    return {**settings, "threads": torch.get_num_threads(), "warmup": 2, "models": rows}


def _time(
    candidates: Sequence[Candidate], shape: Shape, rounds: int, extra: Sequence[dict[str, Any]], against: bool
) -> list[dict[str, Any]]:
    batch = _batch(candidates, shape)
    with ExitStack() as stack:  # a model with a memory goes on in one text: its memory is full
        for one in candidates:
            if memory_length(one.model):
                stack.enter_context(Memory().carried(one.model))
        found = time_models([one.model for one in candidates], batch, rounds)
    base, rows = found[-1].median if against else None, []
    for one, latency, more in zip(candidates, found, extra):
        row: dict[str, Any] = {"model": one.name, "engine": one.engine, "precision": one.precision}
        row |= {"batch_size": shape.batch_size, "max_length": shape.max_length, **latency._asdict()}
        speed = {"speedup": base / latency.median if base else None}
        speed |= {"sequences_per_second": shape.batch_size / latency.median}
        rows.append(
            {**row, **speed, "joules": _joules(one.model, batch, latency.median), **more, **one.counts}
        )
    return rows


def _extra(
    one: Candidate, shape: Shape, memory: bool, task: Any, options: dict[str, Any], on_progress: OnProgress
) -> dict[str, Any]:
    """Return what does not depend on the shape: peak memory, and what the model is worth on test data."""
    peak, worth = None, None
    if memory and one.folder is not None:
        on_progress(Progress("measuring memory", message=one.name))
        peak = peak_memory(one.folder, shape.batch_size, shape.max_length, torch.get_num_threads())
    if task is not None:
        place = one.folder if one.engine != "torch" else None
        how: Any = {"calibration": 1, **options}
        session = open_session(place or one.given, task, target="weights", exported=True, **how)
        on_progress(Progress("evaluating", message=one.name))
        worth = measure_split(session, session.model, TEST)
    return {"peak_bytes": peak, "test": worth}


@contextmanager
def _candidates(given: AnyModel, engines: Sequence[str], tokenizer: Any) -> Iterator[list[Candidate]]:
    """Open a model in every engine: an exported one in its own, others exported for as long as it takes."""
    if isinstance(given, (str, Path)) and is_exported(given):
        yield [_exported(given, Path(given), _name(given))]
        return
    folder = Path(given) if isinstance(given, (str, Path)) and Path(given).is_dir() else None
    model: Any = given if not isinstance(given, (str, Path)) else load_any(given, dtype=torch.float32)
    vocabulary_of(model)  # or it reads no tokens
    counts = count_model(model, folder, model.dtype)
    precision = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}.get(
        model.dtype, "mixed"
    )
    with TemporaryDirectory() as scratch:
        found = []
        for engine in engines:
            if engine == "torch":
                found.append(Candidate(_name(given), engine, precision, model, counts, given, folder))
                continue
            place = Path(scratch) / engine
            write_export(model, place, engine, tokenizer=tokenizer_of(given, tokenizer), source=folder)
            found.append(_exported(given, place, _name(given)))
        yield found


def _exported(given: AnyModel, place: Path, name: str) -> Candidate:
    model = open_exported(place)
    precision = "int8" if model.record.get("int8") else "fp32"
    return Candidate(name, str(model.record["to"]), precision, model, count_model(model), given, place)


def _joules(model: Any, batch: dict[str, torch.Tensor], seconds: float) -> float | None:
    passes = max(1, round(ENERGY_SECONDS / seconds))
    if joules_of(lambda: None) is None:
        return None
    with torch.inference_mode():
        used = joules_of(lambda: [model(**batch) for _ in range(passes)])
    return None if used is None else used / passes


def _batch(candidates: Sequence[Candidate], shape: Shape) -> dict[str, torch.Tensor]:
    words = min(int(one.model.config.get_text_config().vocab_size) for one in candidates)
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, words, (shape.batch_size, shape.max_length), generator=draw)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _check_lengths(candidates: Sequence[Candidate], longest: int) -> None:
    for one in candidates:
        limit = position_limit(one.model)
        if limit is not None and longest > limit:
            raise InvalidValueError(
                f"`max_length` is {longest}, but {one.name} has positions for {limit} tokens", "max_length"
            )


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _name(given: AnyModel) -> str:
    return short_name(str(given)) if isinstance(given, (str, Path)) else type(given).__name__
