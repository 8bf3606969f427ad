"""espalier compare: methods side by side, at every level."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as given
from .app import app, further
from .show import progress, show


@app.command(
    epilog="Examples: espalier compare tuned --task demo -o run · "
    "espalier compare ./model --task sst2 --methods gnorm,gnorm:static,random:25:every=6 -o run · "
    "espalier compare ./gpt2 --task text.txt --methods gnorm,taylor,random:5 --remove 0.5 · "
    "espalier compare tuned --task sst2 --target weights --remove 0.5:0.8:0.05 --epochs 1 · "
    "espalier compare --recipe bert-financial-news:faithful"
)
def compare(
    model: Annotated[
        str | None, typer.Argument(help="A name on the hub, a folder, or minilm; a recipe names its own.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="As for the other verbs; a recipe names its own.")] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="With commas between: a criterion, then :static, :greedy, :reverse, :step=N, :every=N, "
            ":scope=NAME or :option=value; random:TRIALS. Default: the usual ones of the target."
        ),
    ] = None,
    target: given.Target = "heads",
    remove: Annotated[
        str | None,
        typer.Option(
            help="Heads and neurons: where to end, or levels. Weights: levels, 0.5,0.6 or 0.5:0.8:0.05."
        ),
    ] = None,
    folder: given.Folder = Path("run"),
    tolerance: given.Tolerance = "0.01",
    epochs: given.Epochs = 0,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Also prune gradually: cubic, linear, geometric, cubed.", rich_help_panel=given.TRAINING
        ),
    ] = None,
    lr: given.Lr = 3e-5,
    examples: given.Examples = None,
    calibration: given.Calibration = 256,
    validation: given.Validation = 1000,
    test: given.Test = 5000,
    max_length: given.MaxLength = 128,
    columns: given.Columns = "",
    seed: given.Seed = 0,
    recipe: given.Recipe = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run Python files that it names.", rich_help_panel=given.MORE)
    ] = False,
    set_: given.Set = None,
    dry_run: given.DryRun = False,
    json: given.Json = False,
) -> None:
    """Measure every method at every level; write rows, tables and figures. Killed runs resume."""
    from .. import api

    data = dict(calibration=calibration, validation=validation, test=test, max_length=max_length, seed=seed)
    training = {"epochs": epochs, "schedule": schedule, "lr": lr, "examples": examples}
    how = {"target": target, "remove": remove, "folder": folder, "tolerance": tolerance, "recipe": recipe}
    more = further(columns, set_, trust=trust, dry_run=dry_run, **how, **training, **data)
    with progress() as on_progress:
        found = api.compare(model, task, methods, on_progress=on_progress, **more)
    show(found, json)
