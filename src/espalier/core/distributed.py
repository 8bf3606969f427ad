"""Several processes that share one run: which am I, which work is mine, and what all of us found.

Every process goes through the same steps on its own share of the batches. What each found is put back in
the order of the batches before it is added up, so that the sums are those of one process, to the last bit.
Only tensors travel: nothing is pickled.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import EspalierError

MOST_DIMENSIONS = 8  # of a tensor that one process tells the others about


def world_size() -> int:
    """How many processes there are."""
    group = torch.distributed
    return group.get_world_size() if group.is_available() and group.is_initialized() else 1


def rank() -> int:
    """The number of this one, from 0."""
    return torch.distributed.get_rank() if world_size() > 1 else 0


def is_launched() -> bool:
    """Whether this process was started as one of several, by accelerate, torchrun or `--processes`."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def join() -> Any:
    """Meet the others, and say which device is this one's."""
    try:
        from accelerate import PartialState
    except ImportError:
        raise EspalierError(
            "several processes need accelerate. Type: pip install 'espalier[train]'"
        ) from None
    return PartialState(cpu=not torch.cuda.is_available()).device


def leave() -> None:
    """Part from the others in good order."""
    if world_size() > 1:
        torch.distributed.destroy_process_group()


def my_share(weights: Sequence[int]) -> list[int]:
    """Which of the pieces of work are mine: the heaviest first, each to whoever has least so far."""
    loads = [0] * world_size()
    mine = []
    for number in sorted(range(len(weights)), key=lambda n: -weights[n]):
        lightest = loads.index(min(loads))
        loads[lightest] += weights[number]
        if lightest == rank():
            mine.append(number)
    return sorted(mine)


def gather(found: Mapping[int, Tensor], total: int) -> Tensor:
    """[total, …] in float64: every piece that any process found, in order."""
    one = next(iter(found.values()), None)
    shape = tuple(one.shape) if one is not None else ()
    if world_size() > 1:
        told = torch.zeros(1 + MOST_DIMENSIONS, dtype=torch.long)
        if one is not None:
            told[: 1 + len(shape)] = torch.tensor([len(shape), *shape])
        _all_reduce(told, torch.distributed.ReduceOp.MAX)  # some may have had nothing to do
        shape = tuple(told[1 : 1 + int(told[0])].tolist())
    out = torch.zeros(total, *shape, dtype=torch.float64)
    for number, value in found.items():
        out[number] = value.double().cpu()
    return all_sum(out)


def all_sum(values: Tensor) -> Tensor:
    """The sum over processes; where each number comes from one of them and is zero elsewhere, it is exact."""
    if world_size() > 1:
        _all_reduce(values, torch.distributed.ReduceOp.SUM)
    return values


def all_sum_array(values: np.ndarray) -> np.ndarray:
    """The same of an array."""
    return all_sum(torch.from_numpy(values)).numpy()


def barrier() -> None:
    """Until all have come this far."""
    all_sum(torch.zeros(1))


def _all_reduce(values: Tensor, how: Any) -> None:
    on = values
    if torch.distributed.get_backend() == "nccl":
        on = values.cuda()
    try:
        torch.distributed.all_reduce(on, op=how)
    except RuntimeError as error:
        raise EspalierError(
            "another process of this run has ended, so this one stops too. What was measured before is on "
            "disk: type the same command again to go on"
        ) from error
    if on is not values:
        values.copy_(on)
