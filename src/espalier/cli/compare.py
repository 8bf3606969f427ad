"""espalier compare: strategies side by side, down to the last head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from . import options as given
from . import sparsity as weight
from . import ways
from .app import app
from .groups import DATA, ENGINE, MEASURING, Data, Engine, Measuring, spread
from .launching import parted, share_work
from .options import step_of
from .progress import keeping_rows, progress
from .show import Json, hush, say

BY = "gnorm,gnorm:static,entropy,entropy:reverse,gnorm:reverse,taylor,random:25"


@app.command(
    epilog="Examples: espalier compare tuned --task demo -o run · "
    "espalier compare ./model --task sst2 --by gnorm,gnorm:static,random:25:every=6 -o run · "
    "espalier compare ./gpt2 --task text.txt --by gnorm,taylor,random:5 --keep 0.5 · "
    "espalier compare tuned --task sst2 --what weights --levels 0.5:0.8:0.05 --epochs 1 · "
    "espalier compare --recipe bert-financial-news --faithful"
)
@spread
def compare(
    model: Annotated[
        str | None,
        typer.Argument(help="A name on the hub, a folder, or minilm; a recipe names its own."),
    ] = None,
    task: given.MaybeTask = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Strategies with commas between: a criterion, then :static, :greedy, :reverse or "
            f":option=value; random:TRIALS. If not said: {BY.replace(',', ', ')}. Of weights a criterion, "
            f"then :scope=layer or :option=value; if not said: {weight.BY.replace(',', ', ')}"
        ),
    ] = None,
    every: Annotated[
        int | None, typer.Option(min=1, help="Measure after every so many units, not after each.")
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(help="Score again after every so many units; auto: as many as is safe."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="A recipe (espalier list recipes) or a TOML file; sizes, splits and seed are its."),
    ] = None,
    faithful: Annotated[
        bool,
        typer.Option("--faithful", help="The recipe as it was published, shared texts and all."),
    ] = False,
    keep: Annotated[float, typer.Option(help="Stop when this fraction is left.")] = 0.0,
    within: Annotated[
        float,
        typer.Option(min=0, max=1, help="The chosen point: the longest stretch this near the base."),
    ] = 0.01,
    what: given.What = "heads",
    sparsities: weight.Sparsities = weight.SPARSITIES,
    output: given.Output = Path("run"),
    calibrate: given.Calibrate = 256,
    measuring: Measuring = MEASURING,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Examples a batch, in order (for pooling=batch).")
    ] = None,
    data: Data = DATA,
    engine: Engine = ENGINE,
    device_map: given.DeviceMap = None,
    all_scores: Annotated[bool, typer.Option("--all-scores", help="Keep every score of every step.")] = False,
    no_figures: Annotated[bool, typer.Option("--no-figures", help="Draw no figures.")] = False,
    json: Json = False,
) -> None:
    """Run each strategy down to the last unit; write rows, tables and figures. Killed runs go on."""
    if what != "weights":
        ways.check_unasked(sparsities)
    if what == "weights" and (recipe or (engine.processes or 1) > 1):
        raise typer.BadParameter("weights are studied in one process, without a recipe")
    share_work(engine.processes, data.threads)
    hush()
    from functools import partial

    from ..experiment import Progress, manifest, parse
    from ..experiment import compare as run
    from ..experiment.method import check_keep
    from ..reproductions import recipes
    from ..reproductions.greedy_gnorm.pooling import write_pooling
    from .opening import opened
    from .reports import show_report

    told = recipes.load(recipe) if recipe else None
    if engine.precision == "auto":  # a run goes on in the numbers it was begun with
        engine = replace(engine, precision=manifest.told(output, "precision") or "auto")
    opening = partial(
        opened,
        model,
        task,
        data,
        measuring,
        kind=what,
        calibrate=calibrate,
        batch=batch,
        recipe=told,
        faithful=faithful,
        engine=engine,
        device_map=device_map,
        also=ways.also_of(sparsities.also),
    )
    if what == "weights":
        unitwise = {"--every": every, "--step": step, "--keep": keep, "--all-scores": all_scores}
        weight.compare_weights(
            opening,
            output,
            sparsities,
            by=by,
            unitwise=[name for name, value in unitwise.items() if value],
            within=within,
            seed=data.seed,
            figures=not no_figures,
            json=json,
        )
        return
    usual = ",".join(told.mode(faithful).strategies) if told else BY
    asked = parse(by or usual, every=every, step=step_of(step))
    check_keep(keep)
    manifest.check_folder(output)
    bench = opening()
    with keeping_rows(output), progress("comparing") as tell:

        def watch(now: Progress) -> None:
            trial = "" if now.trial is None else f" trial {now.trial + 1}"
            value = now.row["metrics"][bench.task.metric]
            tell(
                now.done,
                now.total,
                f"{now.label}{trial}, {now.row['k']} removed: {bench.task.metric} {value:.4g}",
            )

        run(
            bench,
            asked,
            output,
            keep=keep,
            within=within,
            seed=told.seed if told else data.seed,
            all_scores=all_scores,
            watch=watch,
        )
    if parted():
        return
    write_pooling(bench, output)
    published = what == "heads" and bench.task.metric == "accuracy"
    show_report([output], output, within=within, figures=not no_figures, published=published, json=json)
    say(f"Again, from the rows alone: espalier report {output}")
