"""From texts to batches: tokenised once, put together by length, in an order that never changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..core.batches import Batches
from ..core.errors import EspalierError
from .task import Examples

TOKENS = 1024  # of one batch, padding included: large for the processor, small for its caches, many to share
BATCH_COST = 32  # in tokens: what a batch costs besides them
Row = dict[str, list[int]]


def encode(examples: Examples, tokenizer: Any, *, length: int, special: bool = False) -> list[Row]:
    """What the tokenizer makes of each example, cut off at `length` tokens, not padded."""
    texts = [list(examples.texts)] + ([] if examples.pairs is None else [list(examples.pairs)])
    if not examples.texts:
        raise EspalierError("there are no examples to encode")
    coded = tokenizer(*texts, truncation=True, max_length=length, return_special_tokens_mask=special)
    return [{name: coded[name][i] for name in coded} for i in range(len(examples))]


def blocks(examples: Examples, tokenizer: Any, *, length: int) -> list[Row]:
    """Running text as blocks of exactly `length` tokens, one after the other; the rest is dropped."""
    ids = tokenizer("\n".join(examples.texts), verbose=False)["input_ids"]
    cut = [ids[i : i + length] for i in range(0, len(ids) - length + 1, length)]
    if not cut:
        raise EspalierError(
            f"the text has {len(ids)} tokens, not enough for one block of {length}. Type --length"
        )
    return [{"input_ids": row, "attention_mask": [1] * length} for row in cut]


def batched(
    rows: Sequence[Row],
    tokenizer: Any,
    labels: Sequence[float] | None = None,
    *,
    tokens: int = TOKENS,
    size: int | None = None,
) -> Batches:
    """Batches of rows of like length, at most `tokens` each; with `size`, so many a group in their own order.

    `places` of the result says which row stands where, `groups` which batches are one.
    """
    given = [list(range(len(rows)))]
    if size is not None:
        given = [list(range(i, min(i + size, len(rows)))) for i in range(0, len(rows), size)]
    places: list[list[int]] = []
    groups: list[list[int]] = []
    for numbers in given:
        by_length = sorted(numbers, key=lambda i: len(rows[i]["input_ids"]))
        parts = divided([len(rows[i]["input_ids"]) for i in by_length], tokens)
        groups.append(list(range(len(places), len(places) + len(parts))))
        places += [[by_length[i] for i in part] for part in parts]
    out = Batches(places=places, groups=() if size is None else groups)
    for group in places:
        batch = dict(tokenizer.pad([rows[i] for i in group], return_tensors="pt"))
        if labels is not None:
            batch["labels"] = torch.tensor([labels[i] for i in group])
        out.append(batch)
    return out


def divided(lengths: Sequence[int], tokens: int = TOKENS, each: int = BATCH_COST) -> list[range]:
    """Rising lengths as runs of at most `tokens`, padding included, that cost least in all.

    A run costs its tokens with their padding, and `each` for being a batch of its own.
    """
    best, ends = [0], [0]  # of the first i rows: the least cost, and where the last run begins
    for i, longest in enumerate(lengths, 1):
        most = max(1, tokens // max(longest, 1))
        costs = {j: best[j] + (i - j) * longest + each for j in range(max(0, i - most), i)}
        start = min(costs, key=lambda j: costs[j])
        best.append(costs[start])
        ends.append(start)
    runs, end = [], len(lengths)
    while end:
        runs.append(range(ends[end], end))
        end = ends[end]
    return runs[::-1]


def language_batches(rows: Sequence[Row], tokenizer: Any, *, tokens: int = TOKENS) -> Batches:
    """Batches of blocks that are their own answers."""
    out = batched(rows, tokenizer, tokens=tokens)
    for batch in out:
        batch["labels"] = batch["input_ids"].clone()
    return out


def longest(model: Any, tokenizer: Any) -> int:
    """How many tokens the model and its tokenizer can take."""
    config = model.config.get_text_config()
    most = getattr(config, "max_position_embeddings", None) or 10**9
    if config.model_type in ("roberta", "xlm-roberta", "camembert"):
        most -= config.pad_token_id + 1  # their positions begin after the padding's
    return min(int(most), int(getattr(tokenizer, "model_max_length", None) or 10**9))
