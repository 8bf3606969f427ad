"""Values put back where they were, chunk by chunk, each place checked before anything is written."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...core.errors import EspalierError
from .fields import Array


def fill(n: int, values: Array, places: Iterable[Array]) -> Array:
    """[n] zeros with the values at their places, which come in rising order, some at a time."""
    out = np.zeros(n, values.dtype)
    last, done = -1, 0
    for at in places:
        if not len(at):
            continue
        if at[0] <= last or (len(at) > 1 and not (at[1:] > at[:-1]).all()):
            raise EspalierError("its indices do not rise, or one comes twice")
        last = int(at[-1])
        if last >= n:
            raise EspalierError(f"an index points at element {last} of {n}")
        out[at] = values[done : done + len(at)]
        done += len(at)
    if done != len(values):
        raise EspalierError(f"it has {len(values)} values for {done} places")
    return out
