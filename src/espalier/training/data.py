"""What a training reads: every example tokenised once, and batches whose order the seed decides."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import EspalierError
from ..tasks.batches import Row, blocks, encode, longest
from ..tasks.task import Examples

CHUNK = 50  # batches that are sorted by length together: little padding, and still well mixed


@dataclass(frozen=True)
class Data:
    """Every example, tokenised once."""

    rows: list[Row]
    labels: Tensor | None  # None: the text is its own answer
    tokenizer: Any

    def batch(self, places: Sequence[int]) -> dict[str, Any]:
        if self.labels is None:  # blocks of one length: nothing to pad
            ids = torch.tensor([self.rows[i]["input_ids"] for i in places])
            return {"input_ids": ids, "labels": ids.clone()}
        padded = self.tokenizer.pad([self.rows[i] for i in places], return_tensors="pt")
        return {**padded, "labels": self.labels[places]}


def order(lengths: Sequence[int], batch: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of one epoch: mixed, yet of similar length within each. Seed and epoch decide alone."""
    dice = np.random.default_rng([seed, epoch])
    places = dice.permutation(len(lengths)).tolist()
    batches = []
    for start in range(0, len(places), CHUNK * batch):
        chunk = sorted(places[start : start + CHUNK * batch], key=lambda i: lengths[i])
        batches += [chunk[i : i + batch] for i in range(0, len(chunk), batch)]
    return [batches[i] for i in dice.permutation(len(batches))]


def data_of(model: Any, tokenizer: Any, examples: Examples, kind: str, length: int) -> Data:
    """Tokenise, and find out now what would go wrong later."""
    if not len(examples):
        raise EspalierError("there is nothing to train on: the examples are empty")
    takes = inspect.signature(model.forward).parameters
    if "labels" not in takes:
        top = "CausalLM" if kind == "language" else "SequenceClassification"
        raise EspalierError(
            f"{type(model).__name__} has no head that could learn. "
            f"Load it as AutoModelFor{top}.from_pretrained(…)"
        )
    config, labels = model.config.get_text_config(), None
    if kind == "language":
        rows = [{"input_ids": row["input_ids"]} for row in blocks(examples, tokenizer, length=length)]
    else:
        labels = _labels(model, examples, kind)
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        if tokenizer.pad_token_id is None:
            raise EspalierError("the tokenizer has no token to pad with. Give it a pad_token")
        if config.pad_token_id is None:
            config.pad_token_id = tokenizer.pad_token_id
        rows = encode(examples, tokenizer, length=min(length, tokenizer.model_max_length))
        rows = [{name: row[name] for name in row if name in takes} for row in rows]
    empty = [i for i, row in enumerate(rows) if not row["input_ids"]]
    if empty:
        raise EspalierError(f"text {empty[0] + 1} of {len(rows)} is empty; leave it out")
    most = longest(model, tokenizer)
    if max(len(r["input_ids"]) for r in rows) > most:
        raise EspalierError(f"this model reads at most {most} tokens. Type --length {most}")
    highest = max(max(r["input_ids"]) for r in rows)
    known = model.get_input_embeddings().weight.shape[0]
    if highest >= known:
        raise EspalierError(
            f"the tokenizer gives token {highest}, the model knows {known}: they do not belong together"
        )
    return Data(rows, labels, tokenizer)


def _labels(model: Any, examples: Examples, kind: str) -> Tensor:
    outputs, labels = model.config.num_labels, examples.labels
    if labels is None:
        raise EspalierError(f"{kind} needs an answer for every text; these examples have none")
    regression = kind == "regression"
    if regression and outputs != 1:
        raise EspalierError(f"regression needs a model with num_labels=1; this one has {outputs}")
    if regression and not all(map(math.isfinite, labels)):
        raise EspalierError("some answers are missing or infinite; leave those examples out")
    wrong = [] if regression else [x for x in labels if outputs < 2 or x not in range(outputs)]
    if wrong:
        raise EspalierError(
            f"label {wrong[0]:g} does not fit this model: it has {outputs} classes, numbered from 0. "
            "Load it with num_labels=…"
        )
    # Said, because models guess it from the first labels they see, or remember it from other ones.
    model.config.problem_type = "regression" if regression else "single_label_classification"
    return torch.tensor(labels, dtype=torch.float if regression else torch.long)
