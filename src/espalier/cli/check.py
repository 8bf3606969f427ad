"""espalier check: an architecture, a criterion, or the gradients that heads are ranked by."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options as given
from .app import check_app, further
from .show import progress, show


@check_app.command(
    epilog="Examples: espalier check architecture llama · espalier check architecture ./falcon.py"
)
def architecture(
    name: Annotated[
        str, typer.Argument(help="A model type, a Python file that defines ARCHITECTURE, or all.")
    ],
    json: given.Json = False,
) -> None:
    """Run the contract on one architecture: gated ≡ cut, save → load, generation, exact counts, and more."""
    from ..testing.outcome import check_architecture

    with progress() as on_progress:
        found = check_architecture(name, on_progress)
    show(found, json)
    raise typer.Exit(0 if found["passed"] else 1)


@check_app.command(epilog="Examples: espalier check criterion gnorm · espalier check criterion ./mine.py")
def criterion(
    name: Annotated[str, typer.Argument(help="A criterion, or a Python file that defines one.")],
    json: given.Json = False,
) -> None:
    """Run the contract on one criterion: every target, deterministic, model left as found, and more."""
    from ..testing.outcome import check_criterion

    with progress() as on_progress:
        found = check_criterion(name, on_progress)
    show(found, json)
    raise typer.Exit(0 if found["passed"] else 1)


@check_app.command(
    epilog="Examples: espalier check gradients tuned --task demo · "
    "espalier check gradients ./model --task sst2 --calibration 64 --json"
)
def gradients(
    model: given.Model,
    task: given.Task,
    calibration: given.Calibration = 64,
    few: Annotated[int, typer.Option(min=2, help="Examples for differences and for other batches.")] = 8,
    sample: Annotated[int, typer.Option(min=1, help="Heads to take differences for.")] = 12,
    max_length: given.MaxLength = 128,
    columns: given.Columns = "",
    seed: given.Seed = 0,
    set_: given.Set = None,
    json: given.Json = False,
) -> None:
    """Check that the Q, K and V gradients of every head exist, are right, and suffice to rank heads."""
    from ..testing.outcome import check_gradients

    data = {"calibration": calibration, "max_length": max_length, "seed": seed}
    more = further(columns, set_, few=few, sample=sample, **data)
    with progress() as on_progress:
        found = check_gradients(model, task, on_progress=on_progress, **more)
    show(found, json)
    raise typer.Exit(0 if found["passed"] else 1)
