"""Independent pieces of work on as many threads as torch may use; NumPy lets go of Python meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def each(pieces: int, work: Callable[[int], None]) -> None:
    """work(0), work(1), …, in any order; the first error is raised."""
    threads = min(torch.get_num_threads(), pieces)

    def share(first: int) -> None:
        for piece in range(first, pieces, threads):
            work(piece)

    if threads <= 1:
        for piece in range(pieces):
            work(piece)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(share, range(threads)))
