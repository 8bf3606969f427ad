"""Which tokens a model that drops some reads: the hooks that drop them hang at its base model."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..architectures.sites import blocks, unwrapped
from ..architectures.table import architecture_of
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
    return None if dropper is None else (dropper.state.places, dropper.state.real)


def narrow_blocks(model: PreTrainedModel) -> list[nn.Module]:
    """Return the blocks that read fewer tokens than there are in a text."""
    dropper = dropper_of(model)
    if dropper is None:
        return []
    found = [block for _, block in blocks(model, architecture_of(model))]
    acts = [dropper.schedule.acts(number) for number in range(len(found))]
    return found[acts.index(True) + 1 :] if True in acts else []
