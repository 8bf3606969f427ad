"""espalier run: a recipe in TOML, with changes typed behind it."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options as given
from .app import app
from .show import progress, show


@app.command(
    epilog="Examples: espalier run mine.toml · espalier run mine.toml remove=0.5 folder=half · "
    "espalier run mine.toml --dry-run · espalier run bert-financial-news:faithful"
)
def run(
    recipe: Annotated[
        str, typer.Argument(help="A TOML file with a verb and its settings, or one of espalier list recipes.")
    ],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings that replace those of the file.")
    ] = None,
    dry_run: given.DryRun = False,
    json: given.Json = False,
) -> None:
    """Do what a recipe says: a verb, and what differs from its defaults. All mistakes are named at once."""
    from .. import api
    from ..reproductions.setup import parse_changes

    more = parse_changes(changes or []) | ({"dry_run": True} if dry_run else {})
    with progress() as on_progress:
        found = api.run(recipe, on_progress=on_progress, **more)
    show(found, json)
