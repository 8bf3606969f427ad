"""Progress on stderr: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .show import console, say

EVERY = 10.0  # seconds between two lines in a log


@contextmanager
def progress(what: str) -> Iterator[Any]:
    """`tell(done, total, words)`, to be called whenever something is finished."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield _lines(what)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total, words: bar.update(
            task, completed=done, total=total, description=words
        )


def _lines(what: str) -> Any:
    last = [0.0]

    def tell(done: int, total: int, words: str) -> None:
        now = time.monotonic()
        if now - last[0] >= EVERY or done == total:
            last[0] = now
            say(f"{what}: {done} of {total}, {words}")

    return tell
