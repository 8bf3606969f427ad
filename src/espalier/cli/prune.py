"""espalier prune: to a budget or by one method, and the smaller model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import budget
from . import options as given
from .app import app, further
from .show import progress, show


@app.command(
    epilog="Examples: espalier prune tuned --task demo --speedup 2 -o small · "
    "espalier prune tuned --task demo --macs 0.5,0.25 -o family · "
    "espalier prune tuned --task demo --tolerance 0.01 -o small · "
    "espalier prune tuned --task demo --method gnorm --remove 0.5 -o small · "
    "espalier prune tuned --task demo --target weights --remove 0.8 --epochs 2 -o sparse"
)
def prune(
    model: given.Model,
    task: given.Task,
    speedup: budget.Speedup = None,
    macs: budget.Macs = None,
    params: budget.Params = None,
    size: budget.Size = None,
    latency: budget.Latency = None,
    tolerance: budget.Tolerance = None,
    folder: given.Folder = Path("small"),
    overwrite: given.Replace = False,
    repair: budget.Repair = None,
    batch_size: budget.BatchSize = None,
    multiple: budget.Multiple = None,
    dtype: budget.Dtype = None,
    method: budget.Method = None,
    recipe: budget.Recipe = None,
    target: budget.Target = "auto",
    remove: budget.Remove = None,
    epochs: budget.Epochs = 0,
    calibration: budget.Calibration = None,
    validation: given.Validation = 1000,
    test: given.Test = 5000,
    max_length: given.MaxLength = 128,
    columns: given.Columns = "",
    set_: given.Set = None,
    dry_run: given.DryRun = False,
    json: given.Json = False,
) -> None:
    """Make a model smaller, to a budget or by one method; measure before and after on test data, save it."""
    from .. import api

    limits = dict(speedup=speedup, macs=macs, params=params, size=size, latency=latency, tolerance=tolerance)
    how = dict(repair=repair, target=target, remove=remove, epochs=epochs, folder=folder, overwrite=overwrite)
    data = dict(validation=validation, test=test, max_length=max_length)
    given_too = dict(calibration=calibration, batch_size=batch_size, multiple=multiple, dtype=dtype)
    some: dict[str, Any] = {name: value for name, value in given_too.items() if value is not None}
    more = further(columns, set_, **limits, **how, **data, **some, recipe=recipe, dry_run=dry_run)
    with progress() as on_progress:
        found = api.prune(model, task, method, on_progress=on_progress, **more)
    show(found, json)
