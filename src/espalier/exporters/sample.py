"""Random inputs for a model, as its tokenizer would make them, in any shape."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from ..architectures.table import position_limit
from ..core.errors import UnsupportedError
from ..core.types import PreTrainedModel, PreTrainedTokenizerBase
from .generation import NAMES
from .past import TRACED_PAST, Layers, traced_past
from .runtime import PAST

TRACED = (3, 17)  # sequences and tokens; no other size of a model is likely to be the same
CHECKED = ((1, 1), (1, 7), (2, 32), (5, 48), (1, 128))


def input_names(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> list[str]:
    """Return what the exported model reads: what its tokenizer makes, of what it takes."""
    takes = inspect.signature(model.forward).parameters
    if "input_ids" not in takes or model.config.is_encoder_decoder:
        raise UnsupportedError(
            f"{type(model).__name__} does not read one sequence of tokens; encoders, classifiers and causal "
            "language models can be exported"
        )
    made = NAMES[:2] if tokenizer is None else (*NAMES[:2], *tokenizer.model_input_names)
    return [name for name in NAMES if name in made and name in takes]


def sample(
    model: PreTrainedModel, names: list[str], batch_size: int, length: int, seed: int = 0
) -> dict[str, Tensor]:
    """Return random tokens; the first sequence ends in padding, as batches do."""
    words = model.get_input_embeddings().num_embeddings  # type: ignore[union-attr]
    draw = torch.Generator().manual_seed(seed)
    made = {"input_ids": torch.randint(0, int(words), (batch_size, length), generator=draw)}
    made["attention_mask"] = torch.ones_like(made["input_ids"])
    made["token_type_ids"] = torch.zeros_like(made["input_ids"])
    types = getattr(model.config, "type_vocab_size", 1) or 1
    made["token_type_ids"][:, length // 2 :] = min(1, types - 1)
    if batch_size > 1 and length > 2:
        made["attention_mask"][0, length - length // 3 :] = 0
    return {name: made[name] for name in names}


def shapes(model: PreTrainedModel) -> list[tuple[int, int]]:
    """Return the shapes at which an exported model is compared: none is the traced one."""
    longest = position_limit(model) or max(length for _, length in CHECKED)
    return list(dict.fromkeys((batch, min(length, longest)) for batch, length in CHECKED))


def traced_inputs(model: PreTrainedModel, names: list[str], layers: Layers) -> dict[str, Any]:
    """Return what a model is traced with; `layers` have keys and values of earlier tokens."""
    inputs: dict[str, Any] = sample(model, names, *TRACED)
    if layers:
        earlier = torch.ones(TRACED[0], TRACED_PAST, dtype=torch.long)
        inputs["attention_mask"] = torch.cat([earlier, inputs["attention_mask"]], 1)
        inputs[PAST] = traced_past(layers, TRACED[0])
    return inputs


def dynamic_shapes(inputs: dict[str, Any]) -> dict[str, Any]:
    """Say that batch and length of every input vary; tracing fails if a model cannot have that."""
    from torch.export import Dim

    sizes = {name: {0: Dim.DYNAMIC, 1: Dim.DYNAMIC} for name in inputs if name != PAST}
    if PAST in inputs:
        kept = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC}
        sizes[PAST] = {number: dict.fromkeys(layer, kept) for number, layer in inputs[PAST].items()}
    return sizes
