"""espalier export: a plain checkpoint that needs neither espalier nor its modelling file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import app
from .show import quiet_libraries


@app.command(epilog="Examples: espalier export small -o plain")
def export(
    model: Annotated[Path, typer.Argument(help="A folder of espalier.")],
    folder: Annotated[Path, typer.Option("--folder", "-o", help="The folder to write.")],
) -> None:
    """Write a plain checkpoint, where the architecture's own config can describe the cut."""
    from .. import api

    quiet_libraries()
    typer.echo(f"The plain checkpoint is in {api.export(model, folder)}.", err=True)
