"""What a model is worth and what it costs: the task's numbers with intervals, parameters, zeros, bytes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..analysis.bootstrap import DRAWS, FEWER, METRICS, counts, interval
from ..architectures.table import sites as find_sites
from ..evaluation.cost import parameters
from ..evaluation.predictions import Answers
from .session import Bench

PARTS = ("validation", "test")


def assess(bench: Bench, model: Any = None, *, folder: Path | None = None) -> dict[str, Any]:
    """Both parts of the task that nothing is trained on, and the costs. Of the bench's model, or another."""
    model = bench.model if model is None else model
    return {part: worth(bench, model, part) for part in PARTS} | weights(model, folder)


def worth(bench: Bench, model: Any, part: str) -> dict[str, Any]:
    """Every metric of one part, and a 95 % interval of the task's own: examples are drawn again."""
    answers, metric = bench.evaluate(model, part), bench.task.metric
    found = bench.metrics(answers, part)
    low, high = _interval(answers, bench.truth(part), metric)
    return {"n": len(answers.losses), "metric": metric, **found, "low": low, "high": high}


def _interval(answers: Answers, truth: np.ndarray | None, metric: str) -> tuple[float, float]:
    draws = FEWER if metric == "spearman" else DRAWS
    drawn = counts(len(answers.losses), draws, np.random.default_rng(0))
    low, high = interval(METRICS[metric](truth, answers.predictions[None], drawn)[:, 0])
    if metric == "perplexity":  # held as −ln, so that higher is better
        low, high = math.exp(-high), math.exp(-low)
    return low, high


def weights(model: Any, folder: Path | None = None) -> dict[str, Any]:
    """Parameters, how many of them are exactly zero, and bytes: on disk if there is a folder."""
    matrices = find_sites(model, "weights")
    prunable = sum(site.units for site in matrices)
    zero = sum(int((site.linear.weight == 0).sum()) for site in matrices)
    with torch.no_grad():
        everywhere = sum(int((p == 0).sum()) for p in model.parameters())
    files = [] if folder is None else list(folder.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    return {
        "parameters": parameters(model),
        "zeros": everywhere,
        "prunable": prunable,
        "prunable zeros": zero,
        "sparsity": zero / prunable if prunable else 0.0,
        "bytes": size or sum(p.numel() * p.element_size() for p in model.parameters()),
    }
