"""What commands print: outcomes, progress, and why they end early; only the first process prints.

Tables are for people, JSON is for programs. Errors are spelled in the words of the command line.
"""

from __future__ import annotations

import json as json_
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from ..core.call import spell_parameters
from ..core.terminal import visible
from .app import QUIET, app

if TYPE_CHECKING:
    from ..core.progress import Progress

WIDTH = 100  # of a pipe, which has no width of its own
TEXT = 40  # cells that a column of texts has at least; longer ones are wrapped between words
EVERY = 10.0  # seconds between two lines in a log


def show(outcome: Any, json: bool = False) -> None:
    """Print the facts of an outcome as JSON, or tables, notes, verdicts; of several processes the first."""
    if rank():
        return
    if json:
        plain = "utf" not in (sys.stdout.encoding or "").lower()
        say(json_.dumps(outcome.to_dict(), indent=1, ensure_ascii=plain, allow_nan=False))
        return
    for one in outcome.tables:
        parts = split_columns(one.rows)
        for number, part in enumerate(parts, 1):
            title = one.title if number == 1 else f"{one.title} (continued)".strip()
            print_table(part, one.caption if number == len(parts) else "", title)
    for note in () if QUIET.get() else outcome.notes:
        say(note, err=True)
    for verdict in outcome.verdicts:
        say(verdict)


def say(text: str, *, err: bool = False) -> None:
    """Print text; all that commands print passes through here or through a table."""
    if not rank():
        typer.echo(visible(text), err=err)


def split_columns(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return a table in parts that fit the screen, each with the first column; three are never parted."""
    names, room = list(rows[0]) if rows else [], width() - 2
    if len(names) <= 3:  # before and after: their cells are wrapped between words instead
        return [rows]
    wide = {x: 3 + max(_least(str(cell)) for cell in (x, *(row[x] for row in rows))) for x in names}
    parts = [names[:1]]
    for name in names[1:]:
        if len(parts[-1]) > 1 and sum(wide[x] for x in parts[-1]) + wide[name] > room:
            parts.append(names[:1])
        parts[-1].append(name)
    return [[{name: row[name] for name in part} for row in rows] for part in parts]


def _least(cell: str) -> int:
    """How wide a column must be for a cell: longer texts are wrapped, words and short ones are not."""
    from rich.cells import cell_len

    return max(min(cell_len(cell), TEXT), *map(cell_len, cell.split() or [""]), 0)


def width() -> int:
    """Return the width of the terminal; a pipe has none of its own."""
    screen = console()
    return int(screen.width) if screen.is_terminal else WIDTH


def print_table(rows: list[dict[str, Any]], caption: str = "", title: str = "") -> None:
    """Print rows of equal keys as a table."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD)
    if title:
        grid.title, grid.title_justify = Text(title, style="bold"), "left"
    for column in rows[0] if rows else ():
        numbers = all(isinstance(row[column], int | float) for row in rows) or "/" in column
        grid.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:  # Text, not markup: names come from outside; a table shows what a terminal would obey
        grid.add_row(*(Text(str(value)) for value in row.values()))
    screen = console()
    screen.width = width()
    screen.print(grid)
    if caption:
        screen.print(Text(caption))


def console(stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr, quiet=rank() > 0)


def rank() -> int:
    """Return the number of this process, without importing torch."""
    found = os.environ.get("RANK", "0")
    return int(found) if found.isdecimal() else 0


@contextmanager
def progress(models: bool = True) -> Iterator[Callable[[Progress], None]]:
    """Give a callback that shows progress on stderr: a bar on a terminal, a line now and then in a log.

    With `models` False no model is loaded, and nothing that loads models is imported.
    """
    if models:
        quiet_libraries()
    screen = console(stderr=True)
    if QUIET.get():
        yield lambda now: None
        return
    if not screen.is_terminal:
        yield _lines()
        return
    from ..core.progress_bar import progress_bar

    with progress_bar(screen) as update:
        yield update


def _lines() -> Callable[[Progress], None]:
    last, started = 0.0, False

    def update(now: Progress) -> None:
        nonlocal last, started
        if not now.total:
            return
        if time.monotonic() - last >= EVERY or (now.done == now.total and started):
            last, started = time.monotonic(), True
            say(", ".join(filter(None, [f"{now.stage}: {now.done} of {now.total}", now.message])), err=True)

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


def in_flags(message: str) -> str:
    """Spell parameters, `max_length`, as flags of the typed command, and espalier.train as a command."""
    verb: Any = typer.main.get_command(app)
    verbs = "|".join(verb.commands)
    message = re.sub(rf"\bespalier\.({verbs})\b(?!\()", r"espalier \1", message)
    for word in sys.argv[1:3]:
        verb = getattr(verb, "commands", {}).get(word, verb)
    flags = {p.name: p.opts[0] for p in getattr(verb, "params", ()) if p.opts[0].startswith("-")}
    return spell_parameters(message, flags)


def stop(error: BaseException) -> None:
    """End after Ctrl-C, with what is kept."""
    notes = getattr(error, "__notes__", []) or ["nothing was changed. Repeat it to start over"]
    fail(f"stopped: {in_flags('; '.join(notes))}", code=130)


def fail(message: str, code: int = 1) -> None:
    """Print a message and end."""
    say(f"espalier: {message}", err=True)
    raise SystemExit(code)
