"""How long a forward pass takes. Models take turns on the same batch, so that all meet the same machine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.batches import model_inputs
from ..engine.passes import frozen_eval
from ..engine.products import plain_products
from .energy import joules_between, read_counters

QUARTILES = torch.tensor([0, 0.25, 0.5, 0.75], dtype=torch.float64)


class Latency(NamedTuple):
    """Seconds of a forward pass over several rounds."""

    best: float
    low: float  # first quartile
    median: float
    high: float  # third quartile
    joules: float | None = None  # the mean over the same passes, where the system tells


def time_models(
    models: Sequence[nn.Module], batch: Mapping[str, Tensor], rounds: int = 10, warmup: int = 2
) -> list[Latency]:
    """Time each model on the batch, one pass of every model per round, after `warmup` rounds not counted."""
    joules: list[list[float | None]] = [[] for _ in models]
    seconds = time_rounds(models, batch, rounds, warmup, joules)
    found = []
    for quartiles, used in zip(seconds.quantile(QUARTILES, dim=1).T.tolist(), joules):
        known = [one for one in used if one is not None]
        mean = sum(known) / rounds if len(known) == rounds else None
        found.append(Latency(*quartiles)._replace(joules=mean))
    return found


def time_rounds(
    models: Sequence[nn.Module],
    batch: Mapping[str, Tensor],
    rounds: int = 10,
    warmup: int = 2,
    joules: Sequence[list[float | None]] | None = None,
) -> Tensor:
    """Return the seconds of every pass, [models, rounds]; the passes of one round follow one another.

    To the lists of `joules`, one for each model, the energy of exactly these passes is added.
    """
    device = next(models[0].parameters()).device
    inputs = {name: value.to(device) for name, value in model_inputs(batch, labels=False).items()}
    seconds = torch.empty(len(models), rounds, dtype=torch.float64)
    for number in range(-warmup, rounds):
        for turn in range(len(models)):
            i = (turn + number) % len(models)  # another one is the first: on a busy machine that is a gain
            model = models[i]
            with plain_products(), frozen_eval(model), torch.inference_mode():
                _wait(device)
                before = read_counters() if joules is not None else {}
                start = time.perf_counter()
                model(**inputs)
                _wait(device)
                taken = time.perf_counter() - start
                if number >= 0:
                    seconds[i, number] = taken
                    if joules is not None:
                        joules[i].append(joules_between(before, read_counters()) if before else None)
    return seconds


def _wait(device: torch.device) -> None:
    """Wait until an accelerator has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def speedup_of(times: torch.Tensor) -> float:
    """Return the ratio of the lower quartiles of two models' seconds, [2, rounds]: others are disturbed."""
    before, after = times.quantile(0.25, dim=1).tolist()
    return float(before / after)


def describe_rounds(times: torch.Tensor) -> dict[str, Any]:
    """Return quartiles of the seconds of two models, before and after, [2, rounds], and of their ratio."""
    names = ("best", "low", "median", "high")
    both = [dict(zip(names, row)) for row in times.quantile(QUARTILES, dim=1).T.tolist()]
    ratio = (times[0] / times[1]).quantile(torch.tensor([0.25, 0.75], dtype=times.dtype)).tolist()
    return {"before": both[0], "after": both[1], "rounds": times.shape[1], "ratio": ratio}
