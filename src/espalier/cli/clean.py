"""espalier clean: remove what killed writes left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as given
from .app import app
from .show import show


@app.command(epilog="Examples: espalier clean small")
def clean(
    folder: Annotated[Path, typer.Argument(help="A folder that was written.")], json: given.Json = False
) -> None:
    """Remove what killed writes left beside a folder and in it; models, rows and trainings stay."""
    from ..io import files
    from ..reports.outcome import Outcome
    from ..reports.tables import Table

    removed = [str(path) for path in files.clean(folder)]
    rows = [{"removed": path} for path in removed]
    show(Outcome({"removed": removed}, [Table(rows)] if rows else [], [f"{len(rows)} removed."]), json)
