"""espalier evaluate: what a model is worth, and what it costs."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options as given
from .app import app, further
from .show import progress, show


@app.command(
    epilog="Examples: espalier evaluate tuned --task demo · espalier evaluate sparse --task sst2 --json · "
    "espalier evaluate run --of tuned --task reviews.tsv"
)
def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_RUN",
            help="A name on the hub, a folder, minilm; or a comparison of heads or neurons: then the model "
            "that each of its methods chose.",
        ),
    ],
    task: given.Task,
    of: Annotated[
        str | None, typer.Option(help="Of a comparison: the model it was made with. It holds no weights.")
    ] = None,
    tolerance: given.Tolerance = "0.01",
    validation: given.Validation = 1000,
    test: given.Test = 5000,
    max_length: given.MaxLength = 128,
    columns: given.Columns = "",
    seed: given.Seed = 0,
    set_: given.Set = None,
    json: given.Json = False,
) -> None:
    """Measure a model, dense, cut or sparse, on validation and test data, with intervals, and count it."""
    from .. import api

    data = {"validation": validation, "test": test, "max_length": max_length, "seed": seed}
    more = further(columns, set_, of=of, tolerance=tolerance, **data)
    with progress() as on_progress:
        found = api.evaluate(model, task, on_progress=on_progress, **more)
    show(found, json)
