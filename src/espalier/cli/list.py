"""espalier list: what is known."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options as given
from .app import app
from .show import show


@app.command("list", epilog="Examples: espalier list architectures · espalier list criteria --json")
def list_(
    what: Annotated[str, typer.Argument(help="architectures, criteria, metrics, tasks, figures or recipes")],
    json: given.Json = False,
) -> None:
    """List what is known."""
    from ..reports.catalogue import catalogue
    from ..reproductions import budget_recipe, recipe
    from ..reproductions.all_attention import steps

    known = {"recipes": lambda: [*recipe.rows(), *budget_recipe.rows(), *steps.rows()]}
    show(catalogue(what, known), json)
