"""Which tokens a model that drops some reads: the hooks that drop them hang at its base model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn

from ..architectures.sites import blocks, unwrapped
from ..architectures.table import architecture_of
from ..core.errors import InvalidValueError
from ..core.types import PreTrainedModel

DROPPER = "token_dropper"  # the name of these hooks in the base model


def dropper_of(model: PreTrainedModel) -> Any:
    """Return what drops the tokens of a model, or None."""
    return unwrapped(model).base_model.__dict__.get(DROPPER)


def dropped_tokens(model: PreTrainedModel) -> tuple[Tensor, Tensor] | None:
    """Return (places in the text, whether they are no padding) of the tokens read last, both [batch, tokens].

    None: the model drops no tokens.
    """
    dropper = dropper_of(model)
    return None if dropper is None or dropper.paused else (dropper.state.places, dropper.state.real)


@contextmanager
def reading_all(*models: PreTrainedModel) -> Iterator[None]:
    """Let models that drop tokens read all of them inside."""
    droppers = [dropper for dropper in map(dropper_of, models) if dropper is not None]
    for dropper in droppers:
        dropper.paused = True
    try:
        yield
    finally:
        for dropper in droppers:
            dropper.paused = False


@contextmanager
def following(model: PreTrainedModel, dense: PreTrainedModel) -> Iterator[None]:
    """Let a model follow the one that it was cut from, inside; raise if there is nothing to follow.

    Where both drop the same tokens, both read all of them: who follows on all follows on those that are left.
    """
    own, other = (getattr(dropper_of(one), "schedule", None) for one in (model, dense))
    if other is not None and own != other:
        raise InvalidValueError("`dense` drops other tokens than the model: it cannot be followed", "dense")
    if other is None and own is not None and own.way == "merge":
        raise InvalidValueError("a merged token stands for several: it has no state to follow", "repair")
    with reading_all(model, dense) if other is not None else nullcontext():
        yield


def narrow_blocks(model: PreTrainedModel) -> list[nn.Module]:
    """Return the blocks that read fewer tokens than there are in a text."""
    dropper = dropper_of(model)
    if dropper is None or dropper.paused:
        return []
    found = [block for _, block in blocks(model, architecture_of(model))]
    acts = [dropper.schedule.acts(number) for number in range(len(found))]
    return found[acts.index(True) + 1 :] if True in acts else []
