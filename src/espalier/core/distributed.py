"""Several processes that share one run: rank, share of the work, and results gathered from all.

Every process goes through the same steps on its own share of the batches. Results are put back in the order
of the batches before they are added up, so that the sums are those of one process, to the last bit. Only
tensors are exchanged: nothing is pickled.
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from .errors import DependencyError, EspalierError

MOST_DIMENSIONS = 8  # of a tensor whose shape is exchanged
PARENT_SECONDS = 1.0  # between two looks at whether the parent is still there


def world_size() -> int:
    """Return the number of processes."""
    group = torch.distributed
    return group.get_world_size() if group.is_available() and group.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return torch.distributed.get_rank() if world_size() > 1 else 0


def is_launched() -> bool:
    """Return whether this process was started as one of several, by accelerate or torchrun."""
    size = os.environ.get("WORLD_SIZE", "1")
    return size.isdecimal() and int(size) > 1


def join() -> torch.device:
    """Connect to the other processes, and return the device of this one. It ends soon after its parent."""
    end_with_parent()
    try:
        from accelerate import PartialState
    except ImportError:
        raise DependencyError("accelerate", "train", "a run of several processes") from None
    return PartialState(cpu=not torch.cuda.is_available()).device


def end_with_parent() -> None:
    """End this process soon after the one that started it was killed: nothing else would end it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        os._exit(1)  # rows and states are on disk, and locks are released by the system

    threading.Thread(target=watch, daemon=True).start()


def leave_group() -> bool:
    """Wait for the other processes and leave the group; True on ranks above 0."""
    number = rank()
    barrier()
    if world_size() > 1:
        torch.distributed.destroy_process_group()
    return number > 0


def my_share(weights: Sequence[int]) -> list[int]:
    """Return which pieces of work belong to this process: heaviest first, each to the least loaded one."""
    loads = [0] * world_size()
    mine = []
    for number in sorted(range(len(weights)), key=lambda n: -weights[n]):
        lightest = loads.index(min(loads))
        loads[lightest] += weights[number]
        if lightest == rank():
            mine.append(number)
    return sorted(mine)


def gather(found: Mapping[int, Tensor], total: int) -> Tensor:
    """Return the results of all processes in order, [total, …] in float64."""
    one = next(iter(found.values()), None)
    shape = tuple(one.shape) if one is not None else ()
    if world_size() > 1:
        known = torch.zeros(1 + MOST_DIMENSIONS, dtype=torch.long)
        if one is not None:
            known[: 1 + len(shape)] = torch.tensor([len(shape), *shape])
        _all_reduce(known, "MAX")  # some processes may have had nothing to do
        shape = tuple(known[1 : 1 + int(known[0])].tolist())
    out = torch.zeros(total, *shape, dtype=torch.float64)
    for number, value in found.items():
        out[number] = value.double().cpu()
    return all_sum(out)


def all_sum(values: Tensor) -> Tensor:
    """Return the sum over processes; exact where all but one of them hold zero."""
    if world_size() > 1:
        _all_reduce(values, "SUM")
    return values


def all_sum_array(values: np.ndarray) -> np.ndarray:
    """Return the sum of an array over processes."""
    return all_sum(torch.from_numpy(values)).numpy()


def barrier() -> None:
    """Wait for all processes."""
    all_sum(torch.zeros(1))


def _all_reduce(values: Tensor, operation: str) -> None:
    on = values.cuda() if torch.distributed.get_backend() == "nccl" else values
    try:
        torch.distributed.all_reduce(on, op=getattr(torch.distributed.ReduceOp, operation))
    except RuntimeError as error:
        raise EspalierError(
            "another process of this run has ended, so this one stops too. What was measured before is on "
            "disk: start the same run again to resume it"
        ) from error
    if on is not values:
        values.copy_(on)
