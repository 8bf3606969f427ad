"""A model that drops tokens: for a while, or from now on, with its schedule in the config.

`from_pretrained` and `load` build models from a config, and find the schedule there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..architectures.sites import unwrapped
from ..core.errors import InvalidValueError
from ..core.types import PreTrainedModel
from ..engine.token_places import DROPPER, dropper_of
from .dropper import Dropper, check_droppable
from .schedule import TokenSchedule

CONFIG_KEY = "espalier_tokens"


def schedule_of(model: PreTrainedModel) -> TokenSchedule | None:
    """Return the schedule that a model drops its tokens by, or None."""
    raw = getattr(model.config, CONFIG_KEY, None)
    return None if raw is None else TokenSchedule.from_dict(raw)


def set_schedule(model: PreTrainedModel, schedule: TokenSchedule | None) -> PreTrainedModel:
    """Let a model drop tokens by a schedule from now on, also after saving and loading; None: by none."""
    if schedule is not None:
        check_droppable(model, schedule)
    base: Any = unwrapped(model).base_model
    old = base.__dict__.pop(DROPPER, None)
    if old is not None:
        old.remove()
    for part in (model, base):
        part.config.__dict__.pop(CONFIG_KEY, None)
    if schedule is not None:
        base.__dict__[DROPPER] = Dropper(model, schedule)
        for part in (model, base):
            setattr(part.config, CONFIG_KEY, schedule.to_dict())
    return model


@contextmanager
def dropping_tokens(model: PreTrainedModel, schedule: TokenSchedule) -> Iterator[Dropper]:
    """Drop tokens by a schedule inside, in place of the model's own schedule if it has one.

    >>> with dropping_tokens(model, even_schedule(12, remove=0.5)):
    ...     logits = model(**batch).logits
    """
    before = schedule_of(model)
    if before is not None:
        set_schedule(model, None)
    dropper = None
    try:
        dropper = unwrapped(model).base_model.__dict__[DROPPER] = Dropper(model, schedule)
        yield dropper
    finally:
        if dropper is not None:
            dropper.remove()
            unwrapped(model).base_model.__dict__.pop(DROPPER, None)
        if before is not None:
            set_schedule(model, before)


def restore(model: Any) -> None:
    """Let a model that was just built drop tokens if its config says so."""
    raw = getattr(model.config, CONFIG_KEY, None)
    if raw is not None and model.base_model is model and DROPPER not in model.__dict__:
        model.__dict__[DROPPER] = Dropper(model, TokenSchedule.from_dict(raw))


def survivors(model: PreTrainedModel, batch: Mapping[str, Any]) -> list[Tensor]:
    """Return which tokens are left after each layer, [batch, tokens], of a model that drops tokens."""
    dropper: Dropper | None = dropper_of(model)
    if dropper is None:
        raise InvalidValueError("the model drops no tokens: give it a schedule with set_schedule", "model")
    with torch.no_grad():
        model(**batch)
    return list(dropper.state.kept)
