"""What the commands show: tables for people, and silence where libraries chatter."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]


def table(rows: list[dict[str, Any]], caption: str = "", title: str = "") -> None:
    """Print rows of equal keys as a table a person can read."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, caption=Text(caption), caption_justify="left")
    if title:
        grid.title, grid.title_justify = Text(title, style="bold"), "left"
    for column in rows[0] if rows else ():
        numbers = all(isinstance(row[column], int | float) for row in rows) or "/" in column
        grid.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:  # Text, not markup: names come from outside
        grid.add_row(*(Text(str(value)) for value in row.values()))
    screen = console()
    if not screen.is_terminal:
        screen.width = 160  # a pipe has no width of its own
    screen.print(grid)


def say(text: str) -> None:
    """A word on stderr, for people: programs read stdout."""
    if not _quiet:
        typer.echo(text, err=True)


_quiet: list[bool] = []


def be_quiet() -> None:
    """Of several processes that do the same, the first speaks for all."""
    _quiet.append(True)
    logging.getLogger("espalier").setLevel(logging.ERROR)


def console(stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr, quiet=bool(_quiet))


def plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def hush() -> None:
    """Warnings about odd little configs, retries and other people's progress bars are noise here."""
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub.set_verbosity_error()


def fail(message: str, code: int = 1) -> None:
    print(f"espalier: {message}", file=sys.stderr)
    raise SystemExit(code)
