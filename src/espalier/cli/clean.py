"""espalier clean: remove what killed writes left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import app
from .show import say


@app.command(epilog="Examples: espalier clean small")
def clean(folder: Annotated[Path, typer.Argument(help="A folder that was written.")]) -> None:
    """Remove what killed writes left beside a folder and in it; models, rows and trainings stay."""
    from ..io import files

    removed = files.clean(folder)
    for path in removed:
        say(str(path))
    say(f"{len(removed)} removed.", err=True)
