"""A greedy run that can be timed step by step, on models and texts made for it.

The weights and the words are random, since the time does not depend on them; the sentences have the lengths
of SST-2. Seconds are processor time, so that other programs on the machine do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table

from espalier import Batches, Mask, Scores, criteria, remove_lowest, sites
from espalier.architectures.site import Site
from espalier.engine.cache import ActivationCache
from espalier.engine.precision import arithmetic
from espalier.evaluation.predictions import PredictionCollector
from espalier.pruning.loop import WorkingCopy

# tokens of SST-2's development sentences with BERT's tokenizer: the lengths at 0, 5, … 100 % of them
LENGTHS = [4, 10, 12, 14, 16, 17, 19, 20, 21, 23, 24, 26, 27, 29, 30, 32, 34, 37, 40, 44, 55]
CACHE = 5 * 2**29  # bytes
Clock = Callable[[], float]
Unit = tuple[int, int]  # (number of the site, number of the unit)


@dataclass(frozen=True)
class Shape:
    """The shape of a model, and how much is run through it."""

    name: str
    config: Callable[[], Any]
    sentences: int
    batch_size: int  # as published
    steps: int  # greedy steps timed at each depth


SHAPES = {
    "bert": Shape("BERT-base shape, 144 heads", lambda: transformers.BertConfig(num_labels=3), 128, 32, 4),
    "roberta": Shape(
        "RoBERTa-large shape, 384 heads",
        lambda: transformers.RobertaConfig(
            num_hidden_layers=24,
            hidden_size=1024,
            num_attention_heads=16,
            intermediate_size=4096,
            max_position_embeddings=514,
            vocab_size=50265,
            num_labels=3,
            pad_token_id=1,
        ),
        48,
        4,
        4,
    ),
}
QUICK = Shape(
    "tiny BERT shape, 48 heads",
    lambda: transformers.BertConfig(
        num_hidden_layers=6, hidden_size=64, num_attention_heads=8, intermediate_size=128, num_labels=3
    ),
    8,
    4,
    1,
)  # to check that a benchmark runs, in seconds


class Padding:
    """The part of a tokenizer that batches need."""

    def __init__(self, token: int):
        self.token = token

    def pad(self, rows: list[dict[str, list[int]]], return_tensors: str = "pt") -> dict[str, Any]:
        """Return a batch, padded on the right to its longest row."""
        longest = max(len(row["input_ids"]) for row in rows)
        ids = torch.full((len(rows), longest), self.token)
        mask = torch.zeros(len(rows), longest, dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
            mask[i, : len(row["input_ids"])] = 1
        return {"input_ids": ids, "attention_mask": mask}


def text(shape: Shape, n: int | None = None, seed: int = 0) -> tuple[list[dict[str, list[int]]], list[int]]:
    """Return random sentences with the lengths of SST-2's, shuffled, and random labels."""
    rng, n = np.random.default_rng(seed), n or shape.sentences
    quantiles = (np.arange(n) + 0.5) / n
    lengths = np.interp(quantiles, np.linspace(0, 1, len(LENGTHS)), LENGTHS).round().astype(int)
    rows = [{"input_ids": rng.integers(1000, 20000, k).tolist()} for k in rng.permutation(lengths)]
    return rows, rng.integers(0, 3, n).tolist()


def model_of(shape: Shape, attention: str = "sdpa") -> Any:
    """Return a classifier of this shape with random weights, always the same."""
    torch.manual_seed(0)
    config = shape.config()
    config._attn_implementation = attention
    return transformers.AutoModelForSequenceClassification.from_config(config).eval()


def seconds(work: Callable[[], Any], clock: Clock = time.process_time) -> float:
    """Return how long the work takes."""
    return timed(work, clock)[0]


def timed(work: Callable[[], Any], clock: Clock = time.process_time) -> tuple[float, Any]:
    """Return how long the work takes, and its result."""
    start = clock()
    result = work()
    return clock() - start, result


def peak(dtype: torch.dtype = torch.float32, size: int = 1024) -> float:
    """Measure the multiplications and additions a second of a product of matrices, the best of twelve."""
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    times = [seconds(lambda: a @ b) for _ in range(12)]
    return 2 * size**3 / min(times)


def least_seconds(config: Any, rows: list[dict[str, list[int]]], dtype: torch.dtype = torch.float32) -> float:
    """Return how long a forward and an activation-backward pass over the real tokens take at the peak."""
    lengths = np.array([len(row["input_ids"]) for row in rows])
    tokens, squares = int(lengths.sum()), int((lengths**2).sum())
    d, layers = config.hidden_size, config.num_hidden_layers
    linear = 4 * d * d + 2 * d * config.intermediate_size
    return 2 * layers * (2 * tokens * linear + 2 * 2 * squares * d) / peak(dtype)


class Greedy:
    """A greedy run of espalier's own parts: one pass scores and predicts, on a copy cut at each step."""

    def __init__(
        self,
        model: Any,
        data: Batches,
        *,
        pooling: str = "example",
        precision: str = "fp32",
        cache: int = CACHE,
    ):
        self.model, self.data, self.pooling, self.precision = model, data, pooling, precision
        self.sites = sites(model, "heads")
        self.criterion, self.copy = criteria.load("gnorm"), WorkingCopy(model, self.sites)
        data.cache = ActivationCache(cache, graphs=True)
        self.mask = Mask.ones(self.sites)
        self.units = sum(site.units for site in self.sites)

    def score(self) -> Scores:
        """Score the model as the mask leaves it, and collect its predictions in the same pass."""
        collector = PredictionCollector(self.data)
        self.data.on_output = collector
        with self.copy.at(self.mask) as (model, kept), arithmetic(self.precision):
            found = self.criterion(model, kept, self.data, pooling=self.pooling)
        self.predictions = collector.predictions().values
        scores = Scores()
        for site in self.sites:
            scores[site.name] = torch.full(site.shape, -torch.inf, dtype=torch.float64)
            scores[site.name][self.mask[site.name]] = found[site.name]
        return scores

    def step(self, count: int = 1) -> Unit:
        """Remove the lowest units, and return the last of them."""
        scores, before = self.score(), self.mask
        left = round(before.kept * self.units) - count
        self.mask = remove_lowest(scores, 1 - left / self.units, mask=before)
        return removed_units(self.sites, before, self.mask)[-1]

    def kept_units(self, scores: Scores) -> list[Unit]:
        """Return the units that are kept, the lowest score first."""
        names = [site.name for site in self.sites]
        kept = [(i, int(u)) for i, n in enumerate(names) for u in self.mask[n].nonzero().flatten()]
        return sorted(kept, key=lambda unit: float(scores[names[unit[0]]][unit[1]]))


def removed_units(found: Sequence[Site], before: Mask, after: Mask) -> list[Unit]:
    """Return the units that `after` removes and `before` keeps."""
    return [
        (i, int(u))
        for i, site in enumerate(found)
        for u in (before[site.name] & ~after[site.name]).nonzero().flatten()
    ]


def show(title: str, rows: list[dict[str, Any]]) -> str:
    """Print a table, and return it as Markdown."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    body = [[_cell(name, row.get(name)) for name in columns] for row in rows]
    grid = Table(title=title)
    for name in columns:
        grid.add_column(name)
    for line in body:
        grid.add_row(*line)
    Console(width=170).print(grid)
    lines = ["| " + " | ".join(line) + " |" for line in (columns, ["---"] * len(columns), *body)]
    return f"## {title}\n\n" + "\n".join(lines) + "\n"


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0%}" if name == "of the limit" else f"{value:.3g}"
    return str(value)
