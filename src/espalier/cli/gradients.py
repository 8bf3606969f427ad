"""espalier check gradients: are the gradients that heads are ranked by sound."""

from __future__ import annotations

import json as json_
from typing import Annotated

import typer

from . import options as given
from .app import check_app
from .groups import DATA, Data, spread
from .show import Json, console, hush, plain, table


@check_app.command(
    epilog="Examples: espalier check gradients tuned --task demo · "
    "espalier check gradients ./model --task sst2 --calibrate 64 --json"
)
@spread
def gradients(
    model: given.Model,
    task: given.TaskName,
    calibrate: given.Calibrate = 64,
    few: Annotated[
        int, typer.Option(min=2, help="Examples for differences, and to put into batches anew.")
    ] = 8,
    sample: Annotated[int, typer.Option(min=1, help="Heads to take differences for.")] = 12,
    data: Data = DATA,
    json: Json = False,
) -> None:
    """Are the Q, K and V gradients of every head there, right, and enough to rank heads by?"""
    hush()
    from ..testing.gradients import diagnose
    from .opening import opened

    bench = opened(
        model,
        task,
        data,
        kind="heads",
        calibrate=calibrate,
        used=["calibration"],
    )
    with console(stderr=True).status(f"looking at the gradients of {plain(model)}"):
        found = diagnose(bench.model, bench.sites, bench.calibration, few=few, sample=sample, seed=data.seed)
    if json:
        rows = [finding.to_dict() for finding in found]
        typer.echo(json_.dumps(rows, indent=1, ensure_ascii=False))
    else:
        table(
            [
                {
                    "question": finding.name,
                    "verdict": finding.verdict,
                    "seen": finding.means,
                    "what to do": finding.advice,
                }
                for finding in found
            ]
        )
    if any(finding.serious for finding in found):  # what makes our own scores wrong, not what we avoid
        raise typer.Exit(1)
