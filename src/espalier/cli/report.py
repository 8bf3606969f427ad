"""espalier report: tables and figures of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as given
from .app import app, numbers
from .show import show


@app.command(
    epilog="Examples: espalier report run · espalier report run1 run2 -o both --tolerance 0.02 · "
    "espalier report published/ --points BERT=117,ALBERT=3 · espalier report run --json"
)
def report(
    sources: Annotated[
        list[Path], typer.Argument(help="Run folders, folders of published files, or single files.")
    ],
    folder: Annotated[
        Path | None,
        typer.Option("--folder", "-o", help="Where to write: the run folder if it is one, else ./report."),
    ] = None,
    tolerance: Annotated[
        str | None, typer.Option(help="How far below the unpruned model a choice may lie: 0.01, 1pt or 1%.")
    ] = None,
    points: Annotated[
        str, typer.Option(help="Levels picked by hand: MODEL=UNITS, commas between several.")
    ] = "",
    no_figures: Annotated[bool, typer.Option("--no-figures", help="Draw no figures.")] = False,
    published: Annotated[
        bool, typer.Option("--published", help="Also write the files of the published schema.")
    ] = False,
    json: given.Json = False,
) -> None:
    """Turn results into tables and figures; no model is needed."""
    from .. import api

    picked = {name: int(value) for name, value in numbers(points, "--points").items()}
    figures = not no_figures
    show(
        api.report(sources, folder, tolerance=tolerance, points=picked, figures=figures, published=published),
        json,
    )
