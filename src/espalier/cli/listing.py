"""espalier list: what is known."""

from __future__ import annotations

import json as json_
import sys
from typing import Annotated

import typer

from .app import app
from .show import Json, table


@app.command(
    "list",
    epilog="Examples: espalier list architectures · espalier list criteria --json · "
    "espalier list tasks · espalier list recipes",
)
def list_(
    what: Annotated[str, typer.Argument(help="architectures, criteria, tasks or recipes")],
    json: Json = False,
) -> None:
    """List what is known."""
    from ..core.errors import EspalierError, suggest

    lists = {
        "architectures": _anatomies,
        "criteria": _criteria,
        "tasks": _tasks,
        "recipes": _recipes,
    }
    if what not in lists:
        raise EspalierError(f"cannot list {what!r}{suggest(what, lists)} There are: {', '.join(lists)}")
    rows = lists[what]()
    if json:
        typer.echo(json_.dumps(rows, indent=1, ensure_ascii=False))
        return
    table(rows, caption=f"{len(rows)} {'model types' if what == 'architectures' else what}")


def _anatomies() -> list[dict[str, str]]:
    from ..architectures.support import rows

    return rows()


def _criteria() -> list[dict[str, str]]:
    from ..criteria import load, names

    rows = []
    for name in names():
        module = sys.modules[load(name).__module__]
        about = (module.__doc__ or "").strip().splitlines()[0]
        rows.append({"criterion": name, "scores": ", ".join(load(name).targets), "about": about})
    return rows


def _tasks() -> list[dict[str, str]]:
    from ..tasks import names

    return [{"task": name, "about": about} for name, about in names().items()]


def _recipes() -> list[dict[str, str]]:
    from ..reproductions.recipes import load, names

    return [
        {
            "recipe": name,
            "model": load(name).model,
            "task": load(name).task,
            "about": load(name).about,
        }
        for name in names()
    ]
