"""Optimizers, and how the learning rate changes from step to step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..core.errors import UnknownNameError
from ..io.plugin import import_optional

# what is left of the way from the highest learning rate to the last one -> what is left of their difference
LR_SCHEDULES: dict[str, Callable[[float], float]] = {
    "linear": lambda left: left,
    "cosine": lambda left: (1 + math.cos(math.pi * (1 - left))) / 2,
    "constant": lambda left: 1.0,
}
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what a state keeps of an optimizer


def lr_factor(step: int, steps: int, warmup: float, schedule: str = "linear", end: float = 0.0) -> float:
    """Return the factor of the learning rate in one of all `steps` of a training.

    It rises linearly during the warmup, then falls by the schedule to `end`, which it would reach after the
    last step.
    """
    rise = math.ceil(steps * warmup)
    if step < rise:
        return (step + 1) / rise
    return end + (1 - end) * LR_SCHEDULES[schedule]((steps - step) / (steps - rise))


def make_optimizer(name: str, groups: list[dict[str, Any]], lr: float, device: str) -> Any:
    """Return an optimizer by its name."""
    return OPTIMIZERS[name](groups, lr, device)


def check_names(optimizer: str, lr_schedule: str) -> None:
    """Raise for an optimizer or a schedule that does not exist."""
    if optimizer not in OPTIMIZERS:
        raise UnknownNameError("optimizer", optimizer, OPTIMIZERS, "optimizer")
    if lr_schedule not in LR_SCHEDULES:
        raise UnknownNameError("schedule of the learning rate", lr_schedule, LR_SCHEDULES, "lr_schedule")


def _adamw(groups: list[dict[str, Any]], lr: float, device: str) -> Any:
    return torch.optim.AdamW(groups, lr=lr, fused=device in ("cpu", "cuda"))


def _lamb(groups: list[dict[str, Any]], lr: float, device: str) -> Any:
    """Return LAMB (You et al. 2020) with norms of weights up to 10 and without bias correction."""
    found = import_optional("pytorch_optimizer", "lamb", "the optimizer lamb")
    return found.Lamb(groups, lr=lr, adam_debias=True)


OPTIMIZERS: Mapping[str, Callable[..., Any]] = {"adamw": _adamw, "lamb": _lamb}
