"""Fine-tuning: one loop that can be killed at any moment and goes on to the same weights.

Nothing random is remembered: the order of the examples follows from the seed and the epoch, dropout from
the seed and the step. So a state is weights, moments and a step, in one safetensors file.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from ..core.errors import EspalierError
from ..core.log import log
from ..io.atomic import RECORD
from ..io.digest import of_weights
from ..io.rows import alone_in
from ..storage.save import load
from ..tasks.task import KINDS, Examples
from .checkpoint import state_file
from .data import data_of
from .folder import finish, standing
from .loop import Evaluate, Run, Watch, accelerator_of
from .regime import Loss, Regime, model_loss

PRECISIONS = ("fp32", "bf16")

# Weights as a training left them in this program, and those it had begun with: a model that was stopped
# half-way goes on in its folder, although it is no longer what it was.
LEFT: dict[tuple[Path, str], str] = {}


def train(
    model: Any,
    tokenizer: Any,
    examples: Examples,
    *,
    kind: str = "classification",
    epochs: int = 3,
    batch: int = 32,
    rate: float = 5e-5,
    warmup: float = 0.1,
    decay: float = 0.01,
    clip: float = 1.0,
    length: int = 128,
    seed: int = 0,
    precision: str = "fp32",
    folder: str | Path | None = None,
    fresh: bool = False,
    save_every: int | None = None,
    origin: Mapping[str, Any] | None = None,
    evaluate: Evaluate | None = None,
    progress: Watch | None = None,
    regime: Regime | None = None,
    loss: Loss = model_loss,
) -> dict[str, Any]:
    """Fine-tune the model in place, cut or not, and give the history of it.

    With a `folder`, states are kept there on the way (every `save_every` steps, or every minute), an
    interrupted training goes on where it was, and the model is saved in the end. On a CPU the weights are bit
    for bit those of a run that was never interrupted. `fresh` throws away what the folder holds.
    `evaluate(model)` is asked after every epoch, in every process if there are several; `progress` is told of
    every step. A `regime` holds masks or prunes on the way; `loss(model, batch)` replaces the model's own.
    """
    settings: dict[str, Any] = {
        "kind": kind,
        "epochs": epochs,
        "batch": batch,
        "rate": rate,
        "warmup": warmup,
        "decay": decay,
        "clip": clip,
        "length": length,
        "seed": seed,
        "precision": precision,
    }
    _check(settings)
    data = data_of(model, tokenizer, examples, kind, length)
    accelerator = accelerator_of(precision)
    settings |= {
        "processes": accelerator.num_processes,
        "examples": f"{len(examples)} ({examples.fingerprint()})",
    }
    settings |= {"model": _name(model), "weights": _shapes(model)}
    regime = regime or Regime()
    settings |= regime.settings() | getattr(loss, "settings", dict)()
    place = None if folder is None else Path(folder)
    with _alone(place, accelerator):
        if place is not None:
            settings["fingerprint"] = _start(model, place, fresh)
            history = standing(place, settings, fresh, accelerator)
            if history is not None:
                log.info("%s is already trained with these settings: nothing to do", place)
                model.load_state_dict(load(place).state_dict())
                return history
        run = Run(model, data, settings, accelerator, regime, loss)
        dice = [accelerator.device] if accelerator.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(dice):  # the caller's dice stay theirs
                regime.begin(run)
                if place is not None:
                    run.resume(state_file(place))
                with run.prepared() as wrapped:
                    run.steps(wrapped, place, save_every, evaluate, progress)
        finally:
            regime.end()
            if place is not None:
                LEFT[place.resolve(), of_weights(model)] = settings["fingerprint"]
        history = run.history()
        if place is not None and accelerator.is_main_process:
            told = {**(origin or {}), **regime.outcome(run)}
            about = {"settings": settings, "origin": told, "history": history}
            finish(model, tokenizer, place, about)
        accelerator.wait_for_everyone()
        return history


def _check(settings: Mapping[str, Any]) -> None:
    for name, fits, want in (
        ("kind", settings["kind"] in KINDS, f"one of {', '.join(KINDS)}"),
        ("precision", settings["precision"] in PRECISIONS, " or ".join(PRECISIONS)),
        ("epochs", settings["epochs"] >= 1, "at least 1"),
        ("batch", settings["batch"] >= 1, "at least 1"),
        ("length", settings["length"] >= 2, "at least 2"),
        ("rate", 0 < settings["rate"] < math.inf, "more than 0"),
        ("warmup", 0 <= settings["warmup"] < 1, "a fraction below 1"),
        ("decay", settings["decay"] >= 0, "0 or more"),
        ("clip", settings["clip"] >= 0, "more than 0, or 0 for no clipping"),
        ("seed", settings["seed"] >= 0, "0 or more"),
    ):
        if not fits:
            raise EspalierError(f"{name} is {settings[name]}; it must be {want}")


def _alone(place: Path | None, accelerator: Any) -> AbstractContextManager[None]:
    """Two trainings in one folder would take each other's states for their own."""
    if place is None or place.is_file() or not accelerator.is_main_process:
        return nullcontext()
    return alone_in(place, file=None)


def _name(model: Any) -> str:
    name = str(getattr(model.config, "_name_or_path", "") or "")
    name = Path(name).name if Path(name).exists() else name  # no paths of this machine
    return f"{type(model).__name__} {name}".strip()


def _start(model: Any, place: Path, fresh: bool) -> str:
    """The fingerprint of the weights that the folder's training began with, if these are of it."""
    now = of_weights(model)
    begun = state_file(place).exists() or (place / RECORD).exists()
    return LEFT.get((place.resolve(), now), now) if begun and not fresh else now


def _shapes(model: Any) -> str:
    """A model that is cut or frozen otherwise is another model."""
    shapes = [(name, tuple(p.shape), p.requires_grad) for name, p in model.named_parameters()]
    count = sum(p.numel() for p in model.parameters())
    return f"{count:,} in {len(shapes)} tensors ({zlib.crc32(repr(shapes).encode()):08x})"
