"""How long a forward pass takes. Models take turns on the same batch, so that all meet the same machine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core.batches import examples_in, model_inputs
from ..engine.gates import frozen_eval

ROUNDS, WARMUP = 10, 2


@dataclass(frozen=True)
class Latency:
    """Seconds of a forward pass over several rounds, and what was run."""

    best: float
    low: float  # first quartile
    median: float
    high: float  # third quartile
    rounds: int
    batch_size: int
    tokens: int  # of each example, padding included
    threads: int
    device: str


def time_models(
    models: Sequence[nn.Module], batch: Mapping[str, Tensor], rounds: int = ROUNDS, warmup: int = WARMUP
) -> list[Latency]:
    """Time each model on the batch, one pass of every model per round, after `warmup` rounds not counted."""
    inputs = model_inputs(batch, labels=False)
    device = next(models[0].parameters()).device
    inputs = {name: value.to(device) for name, value in inputs.items()}
    seconds = torch.empty(len(models), rounds, dtype=torch.float64)
    for number in range(-warmup, rounds):
        for i, model in enumerate(models):
            with frozen_eval(model), torch.inference_mode():
                _wait(device)
                start = time.perf_counter()
                model(**inputs)
                _wait(device)
                if number >= 0:
                    seconds[i, number] = time.perf_counter() - start
    spread = seconds.quantile(torch.tensor([0, 0.25, 0.5, 0.75], dtype=torch.float64), dim=1)
    tokens = max((value.shape[1] for value in inputs.values() if value.dim() > 1), default=1)
    size, threads = examples_in(batch), torch.get_num_threads()
    return [
        Latency(best, low, median, high, rounds, size, tokens, threads, device.type)
        for best, low, median, high in spread.T.tolist()
    ]


def side_by_side(
    models: Sequence[nn.Module], batch: Mapping[str, Tensor], rounds: int = ROUNDS
) -> list[float]:
    """Return the fastest pass of each model in seconds, to compare with each other."""
    return [found.best for found in time_models(models, batch, rounds)]


def _wait(device: torch.device) -> None:
    """Wait until an accelerator has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
