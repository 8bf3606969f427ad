"""espalier compare --what weights: the sparsity study, and its report."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated, Any

import typer

from .progress import keeping_rows, progress
from .show import say, table

BY = "magnitude,magnitude:scope=layer,wanda,fisher,snip,grasp,obd,taylor,random"
LEVELS = "0.5:0.8:0.05"

Levels = Annotated[
    str, typer.Option(help="Weights: sparsities, 0.5,0.6,0.7, or from:to:step, 0.5:0.8:0.05.")
]
Epochs = Annotated[
    int,
    typer.Option(min=0, help="Weights: also after so many epochs of training under the mask."),
]
Schedule = Annotated[
    str | None,
    typer.Option(help="Weights: also pruned while it is trained: cubic, linear, geometric, cubed."),
]


def compare_weights(
    opening: Any,
    output: Path,
    *,
    by: str | None,
    levels: str,
    within: float,
    epochs: int,
    rate: float,
    examples: int | None,
    schedule: str | None,
    refresh: int | None,
    seed: int,
    figures: bool,
    json: bool,
) -> None:
    """Everything that can be wrong with what was typed is said before the model is opened."""
    from ..errors import EspalierError
    from ..experiment.runfile import check_folder
    from ..schedules import Ramp
    from ..sparsity_study import Progress, Training, levels_of, parse, study

    asked = parse(by or (f"{BY},movement" if epochs else BY))
    wanted = levels_of(levels)
    if schedule:
        Ramp(0.5, 1, schedule)
        if not epochs:
            raise EspalierError(f"--schedule {schedule} prunes while it trains: add --epochs 1")
    training = None
    if epochs:
        training = Training(
            epochs=epochs, examples=examples, rate=rate, schedule=schedule, refresh=refresh
        )
    check_folder(output)
    bench = opening()
    with keeping_rows(output), progress("studying") as tell:

        def watch(now: Progress) -> None:
            row = now.row
            value = row["metrics"][bench.task.metric]
            said = f"{row['strategy']} {row['way']}, {100 * row['level']:g} % zero, {row['split']}"
            tell(min(now.done, now.total), now.total, f"{said}: {bench.task.metric} {value:.4g}")

        study(
            bench, asked, wanted, output, training=training, within=within, seed=seed, watch=watch
        )
    show_study([output], output, within=within, figures=figures, json=json)
    say(f"Again, from the rows alone: espalier report {output}")


def show_study(
    sources: list[Path], place: Path, *, within: float | None, figures: bool, json: bool
) -> None:
    """Write the report of studies and print what it says."""
    from ..report import sparsity_tables as told
    from ..report.sparsity_report import SparsityReport
    from ..results.sparsity import read_study

    found = SparsityReport([read_study(source) for source in sources], within)
    files = found.write(place, figures)
    if json:
        typer.echo(json_.dumps({**found.dict(), "files": [str(f) for f in files]}, indent=1))
        return
    for study in found.studies:
        for way in study.ways:
            table(told.by_level(study, way, brief=True), title=study.model)
        table(told.by_rule(study, found.within), caption=told.caption(study, found.within))
        table(told.three_ways(study))
    say(f"{len(files)} files in {place}")
