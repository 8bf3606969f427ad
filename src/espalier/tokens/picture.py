"""The picture of a text: which of its tokens are left after each layer, and what they scored."""

from __future__ import annotations

from typing import Any

import torch

from ..core.errors import InvalidValueError
from ..core.terminal import visible
from ..engine.token_places import dropper_of
from .installation import survivors


def picture_of(model: Any, tokenizer: Any, text: str, max_length: int) -> dict[str, Any]:
    """Return the tokens of a text, and for each layer who is left and what each scored; None: no score.

    `kept` is the share of the layers that each token is left after, as pages shade it.
    """
    dropper = dropper_of(model)
    if dropper is None:
        raise InvalidValueError("the model drops no tokens: give it a schedule with set_schedule", "model")
    batch = tokenizer(text, return_tensors="pt", truncation=True, max_length=max_length)
    given = {key: batch[key].to(model.device) for key in ("input_ids", "attention_mask") if key in batch}
    kept = [one[0].tolist() for one in survivors(model, given)]
    words = [
        visible(str(word), lines=False) for word in tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    ]
    layers = [
        {"kept": row, "scores": _scores(dropper.state.scores.get(number), len(words))}
        for number, row in enumerate(kept)
    ]
    shares = [round(sum(rows) / len(kept), 4) for rows in zip(*kept)]
    return {"tokens": words, "kept": shares, "layers": layers}


def _scores(found: torch.Tensor | None, tokens: int) -> list[float | None]:
    if found is None:
        return [None] * tokens
    return [float(f"{value:.4g}") if value == value else None for value in found[0].tolist()]
