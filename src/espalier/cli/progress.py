"""Progress on stderr: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from .failure import stop
from .show import console, rank

if TYPE_CHECKING:
    from ..core.progress import Progress

EVERY = 10.0  # seconds between two lines in a log


@contextmanager
def progress() -> Iterator[Callable[[Progress], None]]:
    """Give a callback that shows progress on stderr: a bar on a terminal, a line now and then in a log."""
    quiet_libraries()
    try:  # typer would end an interruption without a word
        with _progress() as update:
            yield update
    except KeyboardInterrupt as error:
        stop(error)


@contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield _lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    text = TextColumn("{task.description}", markup=False)
    parts = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*parts, console=screen, transient=True) as bar:
        line = bar.add_task("", total=None)

        def update(now: Progress) -> None:
            about = now.message or now.stage
            bar.update(line, completed=now.done, total=now.total or None, description=about)

        yield update


def _lines() -> Callable[[Progress], None]:
    last, started = 0.0, False

    def update(now: Progress) -> None:
        nonlocal last, started
        if rank() or not now.total:
            return
        if time.monotonic() - last >= EVERY or (now.done == now.total and started):
            last, started = time.monotonic(), True
            typer.echo(f"{now.stage}: {now.done} of {now.total}, {now.message}", err=True)

    return update


def quiet_libraries() -> None:
    """Silence other libraries' warnings and progress bars, and all processes but the first."""
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging as transformers

    transformers.set_verbosity_error()
    transformers.disable_progress_bar()
    hub.set_verbosity_error()
    if rank():
        logging.getLogger("espalier").setLevel(logging.ERROR)
