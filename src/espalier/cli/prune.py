"""espalier prune: one method, and the smaller model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as given
from .app import app, further
from .show import progress, show


@app.command(
    epilog="Examples: espalier prune tuned --task demo --method gnorm --remove 0.5 -o small · "
    "espalier prune tuned --task demo --method taylor --tolerance 0.01 -o small · "
    "espalier prune tuned --task demo --method gnorm --tolerance 0.01 --run run -o small · "
    "espalier prune tuned --task demo --target weights --remove 0.8 --epochs 2 -o sparse"
)
def prune(
    model: given.Model,
    task: given.Task,
    method: Annotated[
        str | None,
        typer.Option(help="One method, as for espalier compare. Default: gnorm; magnitude for weights."),
    ] = None,
    target: given.Target = "heads",
    remove: Annotated[float | None, typer.Option(help="The fraction of the units to remove.")] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(help="Or: as long as validation stays this near the unpruned model: 0.01, 1pt or 1%."),
    ] = None,
    folder: given.Folder = Path("small"),
    overwrite: given.Replace = False,
    run: Annotated[
        Path | None, typer.Option(help="Take the order from a finished comparison of this model.")
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(help="What competes: global, layer, row, or N:M as 2:4. Default: the criterion's."),
    ] = None,
    epochs: Annotated[
        int,
        typer.Option(min=0, help="Prune while training for so many epochs.", rich_help_panel=given.TRAINING),
    ] = 0,
    schedule: given.Schedule = None,
    lr: given.PruneLr = None,
    examples: given.Examples = None,
    calibration: given.Calibration = 256,
    validation: given.Validation = 1000,
    test: given.Test = 5000,
    max_length: given.MaxLength = 128,
    columns: given.Columns = "",
    seed: given.Seed = 0,
    set_: given.Set = None,
    json: given.Json = False,
) -> None:
    """Remove units by one method, measure before and after on test data, and save the smaller model."""
    from .. import api

    data = dict(calibration=calibration, validation=validation, test=test, max_length=max_length, seed=seed)
    how = dict(target=target, remove=remove, tolerance=tolerance, scope=scope, folder=folder, run=run)
    training = {"schedule": schedule, "lr": lr, "examples": examples, "overwrite": overwrite or None}
    chosen = {name: value for name, value in training.items() if value is not None}
    more = further(columns, set_, epochs=epochs, **how, **chosen, **data)
    with progress() as on_progress:
        found = api.prune(model, task, method, on_progress=on_progress, **more)
    show(found, json)
