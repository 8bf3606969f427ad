"""espalier measure: how fast models are, side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options as given
from .app import app
from .show import quiet_libraries, show


@app.command(
    epilog="Examples: espalier measure small --against tuned · espalier measure a b c --batch-size 8"
)
def measure(
    models: Annotated[list[str], typer.Argument(help="Folders or names on the hub.")],
    against: Annotated[str | None, typer.Option(help="The model that speed-ups are relative to.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences a pass.")] = 1,
    max_length: Annotated[int, typer.Option(min=1, help="Tokens a sequence.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="Passes of each model.")] = 20,
    json: given.Json = False,
) -> None:
    """Time models on random tokens, interleaved in one run, and count them."""
    from .. import api

    quiet_libraries()
    show(api.measure(models, against, batch_size=batch_size, max_length=max_length, rounds=rounds), json)
