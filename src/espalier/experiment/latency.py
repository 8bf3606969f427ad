"""Speed of models: random tokens, every model in every engine interleaved in one run, in several shapes."""

from __future__ import annotations

import os
import time
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
from ..core.terminal import logged_once
from ..engine.memory import Memory, memory_length
from ..evaluation.latency import time_models
from ..exporters.exported import ExportedModel, open_exported
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
    busy = others_running()
    with ExitStack() as opened:
        candidates: list[Candidate] = []
        own: Any = (options.get("tokenizer"), on_progress)
        for one in _as_list(models):
            on_progress(Progress("opening", message=f"opening {_name(one)}"))
            candidates += opened.enter_context(_candidates(one, engines, *own))
        if against is not None:
            on_progress(Progress("opening", message=f"opening {_name(against)}"))
            candidates += opened.enter_context(_candidates(against, engines[:1], *own))
        _check_shapes(candidates, max(batch_sizes), max(max_lengths))
        with logged_once(set()):  # every model is evaluated on the same task
            worth = [_worth(one, task, options, on_progress) for one in candidates]
        rows = []
        for number, shape in enumerate(shapes):
            about = f"timing batch {shape.batch_size}, {shape.max_length} tokens"
            on_progress(Progress("timing", number, len(shapes), about))
            found = _time(candidates, shape, rounds, against is not None)
            for one, row, test in zip(candidates, found, worth):
                peak = _peak(one, shape, on_progress) if memory else None
                rows.append({**row, "peak_bytes": peak, "test": test, **one.counts})
    settings = {"batch_size": batch_sizes, "max_length": max_lengths, "rounds": rounds}
    settings |= {
        "others_running": busy,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }
    return {**settings, "threads": torch.get_num_threads(), "warmup": 2, "models": rows}


def others_running(samples: int = 5) -> float | None:
    """Return how many threads of other programs are running now, on average; None if it is unknown."""
    found = []
    for _ in range(samples):
        try:
            found.append(
                int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1
            )  # less this one
        except (OSError, IndexError, ValueError):
            return None
        time.sleep(0.05)
    return sum(found) / samples


def _time(candidates: Sequence[Candidate], shape: Shape, rounds: int, against: bool) -> list[dict[str, Any]]:
    """Return how long passes at one shape take, and their energy: whole sequences, none keeps a cache."""
    batch = _batch(candidates, shape)
    with ExitStack() as stack:
        for one in candidates:
            if memory_length(one.model):  # it goes on in one text: its memory is full
                stack.enter_context(Memory().carried(one.model))
            else:
                stack.enter_context(_without_cache(one.model))
        found = time_models([one.model for one in candidates], batch, rounds)
    base, rows = found[-1].median if against else None, []
    for one, latency in zip(candidates, found):
        row: dict[str, Any] = {"model": one.name, "engine": one.engine, "precision": one.precision}
        row |= {"batch_size": shape.batch_size, "max_length": shape.max_length, **latency._asdict()}
        row |= {"speedup": base / latency.median if base else None}
        rows.append({**row, "sequences_per_second": shape.batch_size / latency.median})
    return rows


@contextmanager
def _without_cache(model: Any) -> Iterator[None]:
    """Let a language model keep no keys and values of a pass: an exported one returns none either."""
    config = model.config.get_text_config()
    before = getattr(config, "use_cache", None)
    if before is None:
        yield
        return
    config.use_cache = False
    try:
        yield
    finally:
        config.use_cache = before


def _peak(one: Candidate, shape: Shape, on_progress: OnProgress) -> int | None:
    """Return the peak memory at one shape; None for a model that no other process can open."""
    if one.folder is None:
        return None
    on_progress(Progress("measuring memory", message=f"measuring memory of {one.name}"))
    return peak_memory(one.folder, shape.batch_size, shape.max_length, torch.get_num_threads())


def _worth(
    one: Candidate, task: Any, options: dict[str, Any], on_progress: OnProgress
) -> dict[str, Any] | None:
    """Return what a model is worth on test data, if there is a task."""
    if task is None:
        return None
    place = one.folder if one.engine != "torch" else None
    how: Any = {"calibration": 1, **options}
    how["on_progress"] = on_progress
    session = open_session(place or one.given, task, target="weights", exported=True, **how)
    return measure_split(session, session.model, TEST, what=one.name, on_progress=on_progress)


@contextmanager
def _candidates(
    given: AnyModel, engines: Sequence[str], tokenizer: Any, on_progress: OnProgress
) -> Iterator[list[Candidate]]:
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
            about: Any = {"tokenizer": tokenizer_of(given, tokenizer), "source": folder, "name": _name(given)}
            about["on_progress"] = on_progress
            write_export(model, place, engine, kv_cache=False, **about)  # whole sequences are timed
            found.append(_exported(given, place, _name(given)))
        yield found


def _exported(given: AnyModel, place: Path, name: str) -> Candidate:
    model = open_exported(place)
    precision = "int8" if model.record.get("int8") else "fp32"
    return Candidate(name, str(model.record["to"]), precision, model, count_model(model), given, place)


def _batch(candidates: Sequence[Candidate], shape: Shape) -> dict[str, torch.Tensor]:
    words = min(int(one.model.config.get_text_config().vocab_size) for one in candidates)
    return shape.tokens([one.model for one in candidates], words)


def _check_shapes(candidates: Sequence[Candidate], largest: int, longest: int) -> None:
    for one in candidates:
        exported = isinstance(one.model, ExportedModel)
        limit = one.model.longest if exported else position_limit(one.model)
        if limit is not None and longest > limit:
            raise InvalidValueError(
                f"`max_length` is {longest}, but {one.name} has room for {limit} tokens", "max_length"
            )
        most = one.model.largest_batch if exported else None
        if most is not None and largest > most:
            raise InvalidValueError(
                f"`batch_size` is {largest}, but {one.name} holds at most {most} sequences", "batch_size"
            )


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _name(given: AnyModel) -> str:
    return short_name(str(given)) if isinstance(given, (str, Path)) else type(given).__name__
