"""Speed, measured: models side by side on the same batch, in turns, so that all meet the same machine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..core.batches import model_inputs
from ..engine.gates import quiet


def side_by_side(models: Sequence[Any], batch: Mapping[str, Any], rounds: int = 10) -> list[float]:
    """The fastest pass of each, in seconds. Others share the processor: compare them with each other only."""
    given = model_inputs(batch, labels=False)
    best = [float("inf")] * len(models)
    for _ in range(rounds):
        for i, model in enumerate(models):
            with quiet(model), torch.inference_mode():
                start = time.perf_counter()
                model(**given)
                best[i] = min(best[i], time.perf_counter() - start)
    return best
