"""The data of a training: every example tokenised once, and batches in an order that the seed decides."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError, InvalidValueError, UnsupportedError
from ..core.types import PreTrainedModel, PreTrainedTokenizerBase
from ..engine.memory import memory_length
from ..tasks.batches import Row, check_known, encode, encode_blocks, max_tokens, read_tokens
from ..tasks.task import SIMILARITY, Examples

CHUNK = 50  # batches that are sorted by length together: little padding, and still well mixed


@dataclass(frozen=True)
class TrainingData:
    """Every example, tokenised; `labels` is None where the text is to be predicted itself."""

    rows: list[Row]
    labels: Tensor | None
    tokenizer: PreTrainedTokenizerBase

    def count(self, batch_size: int) -> int:
        """Return how many batches an epoch has."""
        return math.ceil(len(self.rows) / batch_size)

    def order(self, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
        """Return the numbers of the examples in every batch of an epoch."""
        return batch_order([len(row["input_ids"]) for row in self.rows], batch_size, seed, epoch)

    def batch(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return the examples of these numbers as padded tensors with labels."""
        if self.labels is None:  # blocks of one length: nothing to pad
            ids = torch.from_numpy(np.stack([self.rows[i]["input_ids"] for i in numbers])).long()
            return {"input_ids": ids, "labels": ids.clone()}
        padded = self.tokenizer.pad([self.rows[i] for i in numbers], return_tensors="pt")
        return {**padded, "labels": self.labels[numbers]}


@dataclass(frozen=True)
class StreamData:
    """Running text as streams, one for each row of a batch, whose segments follow one another.

    A stream has one token more than it predicts: the first of the next one.
    """

    tokens: np.ndarray
    streams: int
    max_length: int
    labels: None = None

    @property
    def words(self) -> int:
        """Return how many tokens each stream predicts."""
        return (len(self.tokens) - 1) // self.streams

    def count(self, batch_size: int) -> int:
        """Return how many segments a stream has."""
        return math.ceil(self.words / self.max_length)

    def order(self, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
        """Return the numbers of the segments in every batch: the next of each stream."""
        count = self.count(batch_size)
        return [[stream * count + i for stream in range(self.streams)] for i in range(count)]

    def batch(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return the same segment of some streams; labels hold the token after it too."""
        places = [divmod(number, self.count(self.streams)) for number in numbers]
        starts = [stream * self.words + i * self.max_length for stream, i in places]
        length = min(self.max_length, self.words - places[0][1] * self.max_length)
        labels = torch.from_numpy(np.stack([self.tokens[s : s + length + 1] for s in starts])).long()
        return {"input_ids": labels[:, :-1], "labels": labels}


def batch_order(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Return the batches of one epoch: shuffled by seed and epoch, with similar lengths within each batch."""
    rng = np.random.default_rng([seed, epoch])
    numbers = rng.permutation(len(lengths)).tolist()
    batches = []
    for start in range(0, len(numbers), CHUNK * batch_size):
        chunk = sorted(numbers[start : start + CHUNK * batch_size], key=lambda i: lengths[i])
        batches += [chunk[i : i + batch_size] for i in range(0, len(chunk), batch_size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def prepare_data(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Examples,
    kind: str,
    max_length: int,
    batch_size: int = 1,
) -> TrainingData | StreamData:
    """Tokenise the examples, and raise now for what would fail during the training.

    Running text is one stream for each row of a batch if the model has a memory.
    """
    if not len(examples):
        raise DataError("there are no examples to train on")
    if kind == SIMILARITY:
        raise UnsupportedError(
            "embedding models are pruned and repaired, not trained: leave `epochs` out. "
            "sentence-transformers trains the folder of a pruned one"
        )
    parameters = inspect.signature(model.forward).parameters
    if "labels" not in parameters:
        top = "CausalLM" if kind == "language" else "SequenceClassification"
        raise UnsupportedError(f"{type(model).__name__} has no head to train. Load it as AutoModelFor{top}")
    config, labels = model.config.get_text_config(), None
    limit = max_tokens(model, tokenizer)
    if kind == "language" and memory_length(model):
        if max_length > limit:
            seen = f"`max_length` is {max_length}; the model reads {limit} tokens"
            raise InvalidValueError(seen, "max_length")
        return _streams(model, tokenizer, examples, max_length, batch_size)
    if kind == "language":
        blocks = encode_blocks(examples, tokenizer, max_length=max_length)
        rows = [{"input_ids": row["input_ids"]} for row in blocks]
    else:
        labels = _labels(model, examples, kind)
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        if tokenizer.pad_token_id is None:
            raise DataError("the tokenizer has no token to pad with. Give it a pad_token")
        if config.pad_token_id is None:
            config.pad_token_id = tokenizer.pad_token_id
        rows = encode(examples, tokenizer, max_length=min(max_length, tokenizer.model_max_length))
        rows = [{name: row[name] for name in row if name in parameters} for row in rows]
    lengths = [len(row["input_ids"]) for row in rows]
    if not all(lengths):
        raise DataError(f"text {lengths.index(0) + 1} of {len(rows)} is empty; leave it out")
    if max(lengths) > limit:
        raise InvalidValueError(f"`max_length` is {max_length}; the model reads {limit} tokens", "max_length")
    check_known(model, max(int(np.max(row["input_ids"])) for row in rows))
    return TrainingData(rows, labels, tokenizer)


def _streams(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Examples,
    max_length: int,
    streams: int,
) -> StreamData:
    tokens = read_tokens(examples, tokenizer)
    check_known(model, int(tokens.max()))
    if len(tokens) <= streams * max_length:
        raise InvalidValueError(
            f"the text has {len(tokens)} tokens, too few for {streams} streams (`batch_size`) of one segment "
            f"of `max_length` {max_length}: lower one of them, or give more text",
            "max_length",
        )
    return StreamData(tokens, streams, max_length)


def _labels(model: PreTrainedModel, examples: Examples, kind: str) -> Tensor:
    outputs, labels = model.config.num_labels, examples.labels
    if labels is None:
        raise DataError(f"{kind} needs a label for every text; these examples have none")
    regression = kind == "regression"
    if regression and outputs != 1:
        raise UnsupportedError(f"regression needs a model with num_labels=1; this one has {outputs}")
    if regression and not all(map(math.isfinite, labels)):
        raise DataError("some labels are missing or infinite; leave those examples out")
    wrong = [] if regression else [x for x in labels if outputs < 2 or x not in range(outputs)]
    if wrong:
        raise DataError(
            f"label {wrong[0]:g} is none of the model's {outputs} classes: load it with num_labels=…"
        )
    # Set, because models guess it from the first labels they see, or keep it from an earlier task.
    model.config.problem_type = "regression" if regression else "single_label_classification"
    return torch.tensor(labels, dtype=torch.float if regression else torch.long)
