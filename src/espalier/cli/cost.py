"""espalier cost: what a model costs, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as given
from .app import app
from .show import quiet_libraries, show


@app.command(
    epilog="Examples: espalier cost google-bert/bert-base-uncased · espalier cost tuned --plan small · "
    "espalier cost tuned --max-length 512 --figure cost.png"
)
def cost(
    model: Annotated[str, typer.Argument(help="A name on the hub, a folder, a config file or a model type.")],
    max_length: Annotated[int, typer.Option(min=1, help="Tokens a sequence.")] = 128,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences a pass.")] = 1,
    plan: Annotated[Path | None, typer.Option(help="A plan, or the folder of a cut model.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the layers into this file, PNG and PDF.")] = None,
    json: given.Json = False,
) -> None:
    """Count MACs, parameters and storage per layer, before and after a plan; no weights are read."""
    from ..reports import costs

    quiet_libraries()
    counted = costs.costs(model, max_length=max_length, batch_size=batch_size, plan=plan, figure=figure)
    show(counted, json)
