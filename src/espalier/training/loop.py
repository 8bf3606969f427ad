"""Fine-tuning. An interrupted training resumes and ends with the same weights.

No random state is stored: the order of the examples follows from the seed and the epoch, dropout from the
seed and the step. So a state is weights, moments and a step, in one safetensors file.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import nn

from ..core.errors import InvalidValueError
from ..core.progress import OnProgress, ignore
from ..core.terminal import log
from ..core.types import PreTrainedModel, PreTrainedTokenizerBase
from ..engine.dtypes import round_weights
from ..io.rows import exclusive
from ..pruning.cut import cut, plan_of
from ..storage.load import load
from ..tasks.task import KINDS, Examples
from .callbacks import Callback
from .data import prepare_data
from .folder import finish, note_stop, open_folder, starting_fingerprint, state_file
from .optimizer import check_names
from .run import Best, Evaluate, Loss, Run, make_accelerator, model_loss
from .trackers import Track, parse_trackers

PRECISIONS = ("fp32", "bf16")


class LoopOptions(TypedDict, total=False):
    """Options of `train` that every verb with a training passes on."""

    warmup: float
    weight_decay: float
    clip: float
    optimizer: str
    lr_schedule: str
    lr_end: float


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Examples,
    *,
    kind: str = "classification",
    epochs: int = 3,
    batch_size: int = 32,
    lr: float = 5e-5,
    warmup: float = 0.1,
    weight_decay: float = 0.01,
    clip: float = 1.0,
    optimizer: str = "adamw",
    lr_schedule: str = "linear",
    lr_end: float = 0.0,
    max_length: int = 128,
    seed: int = 0,
    precision: str = "fp32",
    folder: str | Path | None = None,
    overwrite: bool = False,
    save_every: int | None = None,
    origin: Mapping[str, Any] | None = None,
    evaluate: Evaluate | None = None,
    on_progress: OnProgress = ignore,
    callback: Callback | None = None,
    track: str | None = None,
    loss: Loss = model_loss,
    best: Best | None = None,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """Fine-tune a model in place, cut or not, and return the history of the training.

    With a `folder`, states are written there (every `save_every` steps, or every minute), an interrupted
    training resumes, and the model is saved at the end. On a CPU the weights are bit for bit those of an
    uninterrupted run. `overwrite` discards what the folder holds. `evaluate(model)` is called after every
    epoch, in every process if there are several; `on_progress` after every step. A `callback` holds masks or
    prunes during the training; `track` names trackers, see trackers.py; `loss(model, batch)` replaces the
    model's own, and may have a `begin_epoch(epoch, epochs)`. With `best`, the weights of the epoch for whose
    evaluation it returns the highest number are kept, not those of the last. The model is saved in `dtype`,
    and its weights are rounded to it in the end.

    The learning rate rises to `lr` during `warmup`, a fraction of all steps, and falls to `lr_end` by the
    `lr_schedule`: linear, cosine, or constant. A model with a memory reads running text as `batch_size`
    streams, and every segment begins with the memory of the one before.
    """
    check_names(optimizer, lr_schedule)
    settings: dict[str, Any] = {"kind": kind, "epochs": epochs, "batch_size": batch_size, "lr": lr}
    settings |= {"warmup": warmup, "weight_decay": weight_decay, "clip": clip, "max_length": max_length}
    settings |= {"seed": seed, "precision": precision, "lr_end": lr_end}
    for name, (valid, wanted) in {
        "kind": (kind in KINDS, f"one of {', '.join(KINDS)}"),
        "precision": (precision in PRECISIONS, " or ".join(PRECISIONS)),
        "epochs": (epochs >= 1, "at least 1"),
        "batch_size": (batch_size >= 1, "at least 1"),
        "max_length": (max_length >= 2, "at least 2"),
        "lr": (0 < lr < math.inf, "more than 0"),
        "lr_end": (0 <= lr_end <= lr, "from 0 to `lr`"),
        "warmup": (0 <= warmup < 1, "a fraction below 1"),
        "weight_decay": (weight_decay >= 0, "0 or more"),
        "clip": (clip >= 0, "more than 0, or 0 for no clipping"),
        "seed": (seed >= 0, "0 or more"),
    }.items():
        if not valid:
            raise InvalidValueError(f"`{name}` is {settings[name]}; it must be {wanted}", name)
    usual = {"optimizer": "adamw", "lr_schedule": "linear", "lr_end": 0.0}  # not noted: older records
    settings |= {"optimizer": optimizer, "lr_schedule": lr_schedule}
    settings = {name: value for name, value in settings.items() if usual.get(name) != value}
    settings |= {} if dtype == torch.float32 else {"dtype": str(dtype).removeprefix("torch.")}
    place = None if folder is None else Path(folder)
    trackers = parse_trackers(track, place)
    data = prepare_data(model, tokenizer, examples, kind, max_length, batch_size)
    accelerator, callback = make_accelerator(precision), callback or Callback()
    if trackers:
        callback = Track(callback, trackers, place.name if place else "training")
    settings |= {
        "processes": accelerator.num_processes,
        "examples": f"{len(examples)} ({examples.fingerprint()})",
        "model": _name(model),
        "weights": _shapes(model),
        **callback.settings(),
        **getattr(loss, "settings", dict)(),
    }
    main = accelerator.is_main_process
    with ExitStack() as stack:
        if place is not None and main and not place.is_file():
            stack.enter_context(exclusive(place, file=None))
        if place is not None:
            settings["fingerprint"] = starting_fingerprint(model, place, overwrite)
            finished = open_folder(place, settings, overwrite, accelerator)
            if finished is not None:
                log.info("%s is already trained with these settings: nothing to do", place)
                done = load(place)
                if (plan := plan_of(done)).keep != plan_of(model).keep:
                    cut(model, plan, report=False)
                model.load_state_dict(done.state_dict())
                return finished
        devices = [accelerator.device] if accelerator.device.type == "cuda" else []
        try:
            callback.wrap(model)
            run = Run(model, data, settings, accelerator, callback, loss, best)
            with torch.random.fork_rng(devices):  # the caller's random state is not changed
                callback.on_start(run)
                if place is not None:
                    run.resume(state_file(place))
                with run.prepared() as wrapped:
                    run.do_steps(wrapped, place, save_every, evaluate, on_progress)
            run.use_best()
            callback.after_training(run)
            history = run.history()
            round_weights(model, dtype)
            if place is not None and main:
                about = {**(origin or {}), **callback.summary()}
                done = {"settings": settings, "origin": about, "history": history}
                finish(model, tokenizer, place, done, dtype)
        except BaseException:
            if place is not None and main:
                note_stop(model, place, settings["fingerprint"])
            callback.unwrap(model)
            raise
        finally:
            callback.on_end()
        accelerator.wait_for_everyone()
        return history


def _name(model: PreTrainedModel) -> str:
    name = str(getattr(model.config, "_name_or_path", "") or "")
    name = Path(name).name if Path(name).exists() else name  # no paths of this machine
    return f"{type(model).__name__} {name}".strip()


def _shapes(model: nn.Module) -> str:
    """Describe what is trained: a model with other shapes or other frozen weights is another one."""
    shapes = [(name, tuple(p.shape), p.requires_grad) for name, p in model.named_parameters()]
    count = sum(p.numel() for p in model.parameters())
    return f"{count:,} in {len(shapes)} tensors ({zlib.crc32(repr(shapes).encode()):08x})"
