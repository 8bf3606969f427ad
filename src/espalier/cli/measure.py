"""espalier measure: how fast models are, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as given
from .app import app, further, whole_numbers
from .show import progress, show


@app.command(
    epilog="Examples: espalier measure small --against tuned · espalier measure small shipped --against "
    "tuned --batch-size 1,8 --max-length 32,128 · espalier measure a b c --task demo -o figures"
)
def measure(
    models: Annotated[list[str], typer.Argument(help="Folders, exported or not, or names on the hub.")],
    against: Annotated[str | None, typer.Option(help="The model that speed-ups are relative to.")] = None,
    engine: Annotated[
        str, typer.Option(help="torch, onnx, openvino, with commas between; exported models have their own.")
    ] = "torch",
    batch_size: Annotated[str, typer.Option(help="Sequences a pass, as 1,8.")] = "1",
    max_length: Annotated[str, typer.Option(help="Tokens a sequence, as 32,128.")] = "128",
    rounds: Annotated[
        int,
        typer.Option(min=1, help="Passes of each model, after two that warm up.", rich_help_panel=given.MORE),
    ] = 20,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory", help="Also the peak memory of a process of its own.", rich_help_panel=given.MORE
        ),
    ] = False,
    task: Annotated[
        str | None, typer.Option(help="Evaluate each model on this task, for a Pareto plot.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", "-o", help="Write figures and measurements.json here.")
    ] = None,
    columns: given.Columns = "",
    set_: given.Set = None,
    json: given.Json = False,
) -> None:
    """Time models on random tokens, interleaved in one run, and count them."""
    from .. import api

    shape = {
        "batch_size": whole_numbers(batch_size, "--batch-size"),
        "max_length": whole_numbers(max_length, "--max-length"),
    }
    more = further(
        columns, set_, task=task, engine=engine, rounds=rounds, memory=memory, folder=folder, **shape
    )
    with progress() as on_progress:
        found = api.measure(models, against, on_progress=on_progress, **more)
    show(found, json)
