"""espalier export: a model for ONNX Runtime or OpenVINO, or a plain checkpoint, that needs no espalier."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as given
from .app import app, further
from .show import progress, show


@app.command(
    epilog="Examples: espalier export small --to onnx -o shipped · espalier export small --to onnx --int8 "
    "--task demo -o shipped · espalier export lm --to onnx --set kv_cache=false -o shipped · espalier export "
    "small -o plain"
)
def export(
    model: Annotated[Path, typer.Argument(help="A folder.")],
    folder: given.Folder,
    to: Annotated[str, typer.Option(help="onnx, openvino, executorch, or plain: a checkpoint.")] = "plain",
    int8: Annotated[
        bool,
        typer.Option("--int8", help="Eight-bit weights and activations, by the runtime's own quantiser."),
    ] = False,
    task: Annotated[
        str | None, typer.Option(help="Calibrate int8 on its training data, and evaluate on its test data.")
    ] = None,
    ranges: Annotated[
        str | None,
        typer.Option(help="Of activations in int8: dynamic, of each batch, or static, of calibration data."),
    ] = None,
    columns: given.Columns = "",
    set_: given.Set = None,
    overwrite: given.Replace = False,
    json: given.Json = False,
) -> None:
    """Export a model; what it computes is compared with torch first."""
    from .. import api

    more = further(columns, set_, to=to, int8=int8, task=task, ranges=ranges, overwrite=overwrite)
    with progress() as on_progress:
        found = api.export(model, folder, on_progress=on_progress, **more)
    show(found, json)
