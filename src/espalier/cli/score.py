"""espalier score: what each unit is worth, by one method."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options as given
from .app import app, further
from .show import progress, show


@app.command(
    epilog="Examples: espalier score tuned --task demo --method gnorm · "
    "espalier score tuned --task demo --method gnorm:objective=loss --json > scores.json"
)
def score(
    model: given.Model,
    task: given.Task,
    method: Annotated[str | None, typer.Option(help="A criterion, with options after colons.")] = None,
    target: given.Target = "heads",
    calibration: given.Calibration = 256,
    max_length: given.MaxLength = 128,
    columns: given.Columns = "",
    seed: given.Seed = 0,
    set_: given.Set = None,
    json: given.Json = False,
) -> None:
    """Score every unit of a model on training examples; bigger means keep."""
    from .. import api

    how = {"target": target, "calibration": calibration, "max_length": max_length, "seed": seed}
    more = further(columns, set_, **how)
    with progress() as on_progress:
        found = api.score(model, task, method, on_progress=on_progress, **more)
    show(found, json)
