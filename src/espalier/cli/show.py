"""What commands print: tables for people, JSON for programs; of several processes only the first prints."""

from __future__ import annotations

import json as json_
import os
from typing import Any

import typer

WIDTH = 160  # of a pipe, which has no width of its own


def show(outcome: Any, json: bool = False) -> None:
    """Print the facts of an outcome as JSON, or its tables and notes; of several processes only the first."""
    if rank():
        return
    if json:
        typer.echo(json_.dumps(outcome.to_dict(), indent=1, ensure_ascii=False))
        return
    for one in outcome.tables:
        print_table(one.rows, one.caption, one.title)
    for note in outcome.notes:
        typer.echo(note, err=True)


def print_table(rows: list[dict[str, Any]], caption: str = "", title: str = "") -> None:
    """Print rows of equal keys as a table."""
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
        screen.width = WIDTH
    screen.print(grid)


def console(stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr, quiet=rank() > 0)


def rank() -> int:
    """Return the number of this process, without importing torch."""
    return int(os.environ.get("RANK", "0"))
