"""From texts to batches: tokenised once, grouped by length, in an order that never changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ..architectures.table import position_limit
from ..core.batches import SCORES, Batches
from ..core.errors import DataError, InvalidValueError
from ..core.terminal import log
from ..core.types import PreTrainedModel, PreTrainedTokenizerBase
from .task import SIMILARITY, Examples

TOKENS = 1024  # of one batch, padding included: large for the processor, small for its caches, many to share
BATCH_COST = 32  # the overhead of one more batch, in tokens
UNLIMITED = 10**9
PIECE = 2**17  # characters of running text that are tokenised together
Row = dict[str, Any]  # a list or an array of numbers for each input of the model


def batches_of(
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    kind: str,
    *,
    max_length: int,
    size: int | None = None,
    upto: int | None = None,
    stream: bool = False,
) -> Batches:
    """Tokenise examples and return them as batches with labels; of running text, at most `upto` blocks.

    `size` makes groups of so many examples in their own order (see `make_batches`); `stream` gives running
    text in segments that follow one another (see `make_segments`).
    """
    if kind == "language" and stream:
        return make_segments(examples, tokenizer, max_length=max_length, upto=upto)
    if kind == "language":
        out = make_batches(encode_blocks(examples, tokenizer, max_length=max_length, upto=upto), tokenizer)
        for batch in out:
            batch["labels"] = batch["input_ids"].clone()
        return out
    if kind == SIMILARITY:
        return pair_batches(examples, tokenizer, max_length=max_length, size=size)
    rows = encode(examples, tokenizer, max_length=max_length, special=True)
    long = sum(len(row["input_ids"]) == max_length for row in rows)
    if long:
        log.info("%d of %d texts reach %d tokens and may be cut off", long, len(rows), max_length)
    labels = examples.labels
    if labels is not None and kind == "classification":
        labels = tuple(int(label) for label in labels)
    return make_batches(rows, tokenizer, labels, size=size)


def pair_batches(
    examples: Examples, tokenizer: PreTrainedTokenizerBase, *, max_length: int, size: int | None = None
) -> Batches:
    """Tokenise the two texts of each pair by themselves; in a batch their rows follow one another.

    The scores of the pairs are kept under a name that no model takes.
    """
    if examples.pairs is None:
        raise DataError("similarity is that of two texts: the examples have no `pairs`")
    first, second = (
        encode(Examples(texts), tokenizer, max_length=max_length, special=True)
        for texts in (examples.texts, examples.pairs)
    )
    lengths = [max(len(row["input_ids"]) for row in pair) for pair in zip(first, second)]
    positions, groups = arrange(lengths, TOKENS // 2, size)
    out = Batches(positions=positions, groups=groups)
    for group in positions:
        batch = dict(tokenizer.pad([row[i] for i in group for row in (first, second)], return_tensors="pt"))
        if examples.labels is not None:
            batch[SCORES] = torch.tensor([float(examples.labels[i]) for i in group])
        out.append(batch)
    return out


def encode(
    examples: Examples, tokenizer: PreTrainedTokenizerBase, *, max_length: int, special: bool = False
) -> list[Row]:
    """Tokenise each example, truncated to `max_length` tokens and not padded."""
    if not len(examples):
        raise DataError("there are no examples to encode")
    texts = [list(examples.texts)] + ([] if examples.pairs is None else [list(examples.pairs)])
    coded = tokenizer(*texts, truncation=True, max_length=max_length, return_special_tokens_mask=special)
    return [{name: coded[name][i] for name in coded} for i in range(len(examples))]


def encode_blocks(
    examples: Examples, tokenizer: PreTrainedTokenizerBase, *, max_length: int, upto: int | None = None
) -> list[Row]:
    """Tokenise running text and cut it into blocks of exactly `max_length` tokens; the rest is dropped.

    The text is read and tokenised piece by piece, and only as far as `upto` blocks need it.
    """
    blocks: list[Row] = []
    waiting: list[int] = []
    mask, count = [1] * max_length, 0
    for new in _tokens(examples.texts, tokenizer):
        waiting += new
        count += len(new)
        whole = len(waiting) // max_length * max_length
        blocks += [
            {"input_ids": np.array(waiting[i : i + max_length], dtype=np.int32), "attention_mask": mask}
            for i in range(0, whole, max_length)
        ]
        waiting = waiting[whole:]
        if upto is not None and len(blocks) >= upto:
            break
    if not blocks:
        raise InvalidValueError(
            f"the text has {count} tokens, too few for one block of `max_length` {max_length}", "max_length"
        )
    return blocks[:upto]


def make_segments(
    examples: Examples, tokenizer: PreTrainedTokenizerBase, *, max_length: int, upto: int | None = None
) -> Batches:
    """Cut running text into batches of one segment each, of `max_length` tokens; the last may be shorter.

    Labels hold the token after the segment too, so every token of the text but the first is predicted once.
    """
    ids = read_tokens(examples, tokenizer, None if upto is None else upto * max_length + 1)
    if len(ids) < 2:
        raise DataError(f"the text has {len(ids)} tokens: there is nothing to predict")
    starts = range(0, len(ids) - 1, max_length)
    out = Batches(positions=[[i] for i in range(len(starts))], stream=True)
    for start in starts:
        labels = torch.from_numpy(ids[start : start + max_length + 1]).long()[None]
        tokens = labels[:, : min(max_length, labels.shape[1] - 1)]
        out.append({"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels})
    return out


def read_tokens(
    examples: Examples, tokenizer: PreTrainedTokenizerBase, upto: int | None = None
) -> np.ndarray:
    """Tokenise running text, as far as `upto` tokens need it."""
    found: list[np.ndarray] = []
    count = 0
    for new in _tokens(examples.texts, tokenizer):
        found.append(np.array(new, dtype=np.int32))
        count += len(new)
        if upto is not None and count >= upto:
            break
    return np.concatenate(found)[:upto]


def _tokens(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[list[int]]:
    """Yield the tokens of running text, piece by piece, between those that begin and end every text."""
    alone, framed = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    starts = (i for i in range(len(framed)) if framed[i : i + len(alone)] == alone)
    start = next(starts, len(framed))
    yield framed[:start]
    for piece in _pieces(texts):
        yield tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
    end = tokenizer("\n", add_special_tokens=False)["input_ids"]
    if end and end == [tokenizer.eos_token_id]:  # ends of lines are words, so the last line has one too
        yield end
    yield framed[start + len(alone) :]


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """Join lines into pieces that end between two lines with words, where no token reaches across."""
    lines: list[str] = []
    size = 0
    for line in texts:
        between = line[:2].strip() and lines and lines[-1].strip()
        if (size >= PIECE and between) or size >= 4 * PIECE:
            yield "\n".join([*lines, ""])
            lines, size = [], 0
        lines.append(line)
        size += len(line) + 1
    yield "\n".join(lines)


def make_batches(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    labels: Sequence[float] | None = None,
    *,
    tokens: int = TOKENS,
    size: int | None = None,
) -> Batches:
    """Pad rows of similar length into batches of at most `tokens` each.

    With `size`, every `size` rows in their own order are a group that counts as one batch. `positions` of the
    result gives the row numbers of each batch, `groups` the batches of each group.
    """
    positions, groups = arrange([len(row["input_ids"]) for row in rows], tokens, size)
    out = Batches(positions=positions, groups=groups)
    for group in positions:
        batch = dict(tokenizer.pad([rows[i] for i in group], return_tensors="pt"))
        if labels is not None:
            batch["labels"] = torch.tensor([labels[i] for i in group])
        out.append(batch)
    return out


def arrange(
    lengths: Sequence[int], tokens: int, size: int | None
) -> tuple[list[list[int]], Sequence[Sequence[int]]]:
    """Return the positions of each batch, and with a `size` the batches of each group."""
    ordered = [list(range(len(lengths)))]
    if size is not None:
        ordered = [list(range(i, min(i + size, len(lengths)))) for i in range(0, len(lengths), size)]
    positions: list[list[int]] = []
    groups: list[list[int]] = []
    for numbers in ordered:
        by_length = sorted(numbers, key=lambda i: lengths[i])
        runs = divide_lengths([lengths[i] for i in by_length], tokens)
        groups.append(list(range(len(positions), len(positions) + len(runs))))
        positions += [[by_length[i] for i in run] for run in runs]
    return positions, () if size is None else groups


def divide_lengths(lengths: Sequence[int], tokens: int = TOKENS, overhead: int = BATCH_COST) -> list[range]:
    """Divide ascending lengths into runs of at most `tokens`, padding included, at the least total cost.

    A run costs its tokens with their padding, plus `overhead` for being a batch of its own.
    """
    best, starts = [0], [0]  # of the first i rows: the least cost, and where the last run begins
    for i, longest in enumerate(lengths, 1):
        most = max(1, tokens // max(longest, 1))
        costs = {j: best[j] + (i - j) * longest + overhead for j in range(max(0, i - most), i)}
        start = min(costs, key=lambda j: costs[j])
        best.append(costs[start])
        starts.append(start)
    runs, end = [], len(lengths)
    while end:
        runs.append(range(starts[end], end))
        end = starts[end]
    return runs[::-1]


def max_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return how many tokens both the model and its tokenizer accept."""
    return min(position_limit(model) or UNLIMITED, int(tokenizer.model_max_length or UNLIMITED))


def check_known(model: PreTrainedModel, highest: int) -> None:
    """Raise if a tokenizer gives a token that the model has no embedding for."""
    if not hasattr(model, "get_input_embeddings"):  # exported: its runtime knows
        return
    embedding: Any = model.get_input_embeddings()
    known = getattr(embedding, "num_embeddings", None) or len(embedding.weight)
    if highest >= known:
        raise DataError(
            f"the tokenizer gives token {highest}, but the model has {known}: use its own tokenizer"
        )
