"""espalier compare --what weights: the sparsity study, and its report."""

from __future__ import annotations

import json as json_
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.errors import EspalierError
from . import ways
from .groups import said_of
from .progress import keeping_rows, progress
from .show import say, table

BY = "magnitude,magnitude:scope=layer,wanda,fisher,snip,grasp,obd,taylor,random"
LEVELS = "0.5:0.8:0.05"

Levels = Annotated[str, typer.Option(help="Weights: sparsities, 0.5,0.6,0.7, or from:to:step, 0.5:0.8:0.05.")]
Epochs = Annotated[
    int,
    typer.Option(min=0, help="Weights: also after so many epochs of training under the mask."),
]
Schedule = Annotated[
    str | None,
    typer.Option(help="Weights: also pruned while it is trained: cubic, linear, geometric, cubed."),
]


@dataclass(frozen=True)
class Sparsities:
    """What is asked of single weights alone."""

    levels: Levels = LEVELS
    epochs: Epochs = 0
    rate: ways.Rate = 3e-5
    examples: ways.Examples = None
    schedule: Schedule = None
    refresh: ways.Refresh = None
    also: ways.Also = ""


SPARSITIES = Sparsities()


def compare_weights(
    opening: Any,
    output: Path,
    given: Sparsities,
    *,
    by: str | None,
    unitwise: list[str],
    within: float,
    seed: int,
    figures: bool,
    json: bool,
) -> None:
    """Everything that can be wrong with what was typed is said before the model is opened."""
    from ..experiment.manifest import check_folder
    from ..experiment.study import Progress, study
    from ..experiment.study_method import levels_of

    if unitwise:
        raise EspalierError(
            f"{', '.join(unitwise)} is for units that go one after the other: leave it out. How many "
            "weights go is said by --levels"
        )
    asked, wanted, training = contenders(by, given), levels_of(given.levels), training_of(given)
    if given.refresh and not given.schedule and not any(one.learned for one in asked):
        raise EspalierError(
            "--refresh is for weights that go while the model is trained: add --schedule cubic"
        )
    check_folder(output)
    bench = opening()
    with keeping_rows(output), progress("studying") as tell:

        def watch(now: Progress) -> None:
            row = now.row
            value = row["metrics"][bench.task.metric]
            said = f"{row['strategy']} {row['way']}, {100 * row['level']:g} % zero, {row['split']}"
            tell(now.done, now.total, f"{said}: {bench.task.metric} {value:.4g}")

        study(bench, asked, wanted, output, training=training, within=within, seed=seed, watch=watch)
    show_study([output], output, within=within, figures=figures, json=json)
    say(f"Again, from the rows alone: espalier report {output}")


def contenders(by: str | None, given: Sparsities) -> list[Any]:
    """Those named, or the usual ones as far as they can score what is pruned."""
    from .. import criteria
    from ..experiment.study_method import check_trained, parse

    also, fits = ways.also_of(given.also), []
    for one in parse(by or (f"{BY},movement" if given.epochs else BY)):
        if one.learned:
            check_trained(one.label, given.epochs > 0)
        try:
            ways.check_inputs(also, one.label, criteria.load(one.criterion))
            fits.append(one)
        except EspalierError:
            if by:
                raise
    return fits


def training_of(given: Sparsities) -> Any:
    """The training of a study, or None."""
    from ..experiment.study_training import Training
    from ..selection.schedules import Ramp

    if given.schedule:
        Ramp(0.5, 1, given.schedule)
    if given.epochs:
        return Training(
            epochs=given.epochs,
            examples=given.examples,
            rate=given.rate,
            schedule=given.schedule,
            refresh=given.refresh,
        )
    said = said_of(replace(given, levels=LEVELS, also=""))
    if said:
        raise EspalierError(f"{', '.join(said)} is for a study that trains: leave it out, or add --epochs 1")
    return None


def show_study(sources: list[Path], place: Path, *, within: float | None, figures: bool, json: bool) -> None:
    """Write the report of studies and print what it says."""
    from ..analysis.sparsity import read_study
    from ..reports import sparsity_tables as told
    from ..reports.sparsity_report import SparsityReport

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
