"""espalier export: a plain checkpoint that needs neither espalier nor its modelling file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as given
from .app import app
from .show import quiet_libraries, say


@app.command(epilog="Examples: espalier export small -o plain")
def export(
    model: Annotated[Path, typer.Argument(help="A folder of espalier.")],
    folder: given.Folder,
    overwrite: given.Replace = False,
) -> None:
    """Write a plain checkpoint, where the architecture's own config can describe the cut."""
    from .. import api

    quiet_libraries()
    say(f"The plain checkpoint is in {api.export(model, folder, overwrite=overwrite)}.", err=True)
