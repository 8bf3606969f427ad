"""espalier report: tables and figures of what was found."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .app import app
from .show import Json, console, say, table

if TYPE_CHECKING:
    from ..reports import Report


@app.command(
    epilog="Examples: espalier report run · espalier report run1 run2 -o both --within 0.02 · "
    "espalier report published/ --points BERT=117,ALBERT=3 · espalier report run --json"
)
def report(
    sources: Annotated[
        list[Path],
        typer.Argument(help="Run folders, folders of published files, or single files."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Where to write: the run folder if it is one, else ./report."),
    ] = None,
    within: Annotated[
        float,
        typer.Option(min=0, max=1, help="How far below the unpruned model a choice may lie."),
    ] = 0.01,
    points: Annotated[
        str, typer.Option(help="Solutions picked by hand: MODEL=UNITS, commas between several.")
    ] = "",
    no_figures: Annotated[bool, typer.Option("--no-figures", help="Draw no figures.")] = False,
    published: Annotated[
        bool, typer.Option("--published", help="Also write the files of the published schema.")
    ] = False,
    json: Json = False,
) -> None:
    """Turn results into tables and figures; no model is needed."""
    from ..analysis.sparsity import is_study
    from ..core.errors import EspalierError
    from ..reports.inputs import folder_of, run_folder
    from .sparsity import show_study

    for source in sources:
        if (source / "config.json").is_file():
            raise EspalierError(
                f"{source} is a model, not a run. Type: espalier evaluate {source} --task TASK"
            )
    place = output or run_folder(sources) or Path("report")
    studies = [source for source in map(folder_of, sources) if is_study(source)]
    if studies and len(studies) < len(sources):
        raise EspalierError(
            f"{studies[0]} is a sparsity study, and not all others are: report them one by one"
        )
    if studies:
        show_study(studies, place, within=within, figures=not no_figures, json=json)
        return
    show_report(
        sources,
        place,
        within=within,
        points=_points(points),
        figures=not no_figures,
        published=published,
        json=json,
    )


def show_report(
    sources: list[Path],
    place: Path,
    *,
    within: float = 0.01,
    points: dict[str, int] | None = None,
    figures: bool = True,
    published: bool = False,
    json: bool = False,
) -> None:
    """Write the report and print what it says; other verbs end with this."""
    from ..core.errors import EspalierError
    from ..reports import Report
    from ..reports.inputs import read
    from ..reproductions.greedy_gnorm.published import write_published

    found = Report(read(sources), within, points)
    files = found.write(place, figures)
    for one in found.results if published else ():
        try:
            files += write_published(one, place / "published")
        except EspalierError as error:  # the rest of the report is as good without it
            say(f"not written in the published schema: {error}")
    if json:
        typer.echo(json_.dumps({**found.dict(), "files": [str(f) for f in files]}, indent=1))
        return
    _print(found)
    _say(f"{len(files)} files in {place}")


def _print(found: Report) -> None:
    from ..reports import captions, tables

    for one, rows, pairs in zip(found.results, found.summaries, found.pairs):
        table(
            tables.short_summary(rows, brief=True),
            title=one.model if len(found.results) > 1 else "",
            caption=captions.caption(one, found.within, brief=True),
        )
        if pairs:
            table(
                tables.short_comparisons(pairs, one.metric),
                caption=f"{one.model}: pairs, a less b; + is better for a",
            )
    if found.solutions:
        table(tables.short_points(found.solutions), caption="solutions at points picked by hand")
    if found.hides:
        _say("What the chosen numbers hide:")
    for line in found.hides:
        _say(f"- {line}")
    for one in found.results:
        for note in one.notes:
            _say(f"{one.model}: {note}")


def _say(line: str) -> None:
    console().print(line, markup=False, highlight=False, soft_wrap=True)


def _points(text: str) -> dict[str, int]:
    """BERT=117,ALBERT=3"""
    from ..core.errors import EspalierError

    out = {}
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        model, _, number = piece.rpartition("=")
        if not model or not number.isdigit():
            raise EspalierError(
                f"--points takes MODEL=UNITS with commas between, like BERT=117,ALBERT=3; got {piece!r}"
            )
        out[model] = int(number)
    return out
