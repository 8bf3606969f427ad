"""espalier report: tables and figures of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import options as given
from .app import app, numbers
from .show import progress, show


@app.command(
    epilog="Examples: espalier report run · espalier report run1 run2 -o both --tolerance 0.02 · "
    "espalier report run1 run2 -o report.html · espalier report run --axis macs · "
    "espalier report published/ --points BERT=117,ALBERT=3 · espalier report run --json"
)
def report(
    sources: Annotated[
        list[Path], typer.Argument(help="Run folders, folders of published files, or single files.")
    ],
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            "-o",
            help="A folder, or report.html for the page alone; else the run folder, or ./report.",
        ),
    ] = None,
    tolerance: Annotated[
        str | None, typer.Option(help="How far below the unpruned model a choice may lie: 0.01, 1pt or 1%.")
    ] = None,
    points: Annotated[
        str, typer.Option(help="Levels picked by hand: MODEL=UNITS, commas between several.")
    ] = "",
    axis: Annotated[
        str, typer.Option(help="What figures draw the metric against: removed, parameters, macs or latency.")
    ] = "removed",
    no_figures: Annotated[bool, typer.Option("--no-figures", help="Draw no figures.")] = False,
    published: Annotated[
        bool, typer.Option("--published", help="Also write the files of the published schema.")
    ] = False,
    json: given.Json = False,
) -> None:
    """Turn results into a page, tables and figures; no model is needed."""
    from .. import api

    picked = {name: int(value) for name, value in numbers(points, "--points").items()}
    how: Any = {"tolerance": tolerance, "points": picked, "figures": not no_figures, "published": published}
    with progress(models=False) as on_progress:
        found = api.report(sources, folder, axis=axis, on_progress=on_progress, **how)
    show(found, json)
