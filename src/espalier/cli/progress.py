"""Progress on stderr: a bar on a terminal, a line now and then in a log, and a last word when stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .show import console, fail, say

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
        yield lambda done, total, words: bar.update(task, completed=done, total=total, description=words)


@contextmanager
def stoppable(words: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C ends in a word on what is kept, and in the exit code that shells expect."""
    try:
        yield
    except KeyboardInterrupt:
        fail(words(), code=130)


@contextmanager
def keeping_rows(folder: Path) -> Iterator[None]:
    """Say how many rows a run has before it goes on, and how many when it is stopped."""
    from ..io.rows import read_rows

    def there() -> str:
        n = len(read_rows(folder / "rows.jsonl"))
        return "1 row is" if n == 1 else f"{n} rows are"

    if (folder / "rows.jsonl").exists():
        say(f"{there()} in {folder} already")
    with stoppable(lambda: f"stopped; {there()} in {folder}; type the same again to go on"):
        yield


def _lines(what: str) -> Any:
    last = [0.0]

    def tell(done: int, total: int, words: str) -> None:
        now = time.monotonic()
        if now - last[0] >= EVERY or done == total:
            last[0] = now
            say(f"{what}: {done} of {total}, {words}")

    return tell
