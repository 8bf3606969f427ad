"""espalier tokens: which tokens of a text survive in which layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import options as given
from .app import app
from .show import quiet_libraries, show


@app.command(
    epilog="Examples: espalier tokens small 'a film that is never dull' · "
    "espalier tokens tuned 'a film that is never dull' --remove 0.5 --figure tokens.png · "
    "espalier tokens small 'a film that is never dull' --run run"
)
def tokens(
    model: given.Model,
    text: Annotated[str, typer.Argument(help="The text to read.")],
    remove: Annotated[
        float | None, typer.Option(help="Drop this fraction instead of what the model does itself.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="top or merge; by default the model's own way, or top.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw it into this file, PNG and PDF.")] = None,
    run: Annotated[
        Path | None, typer.Option(help="The folder of a comparison: its page shows the text too.")
    ] = None,
    json: given.Json = False,
) -> None:
    """Show which tokens of a text are left after each layer of a model that drops tokens."""
    from ..reports import survivors

    quiet_libraries()
    how: Any = {"remove": remove, "method": method, "figure": figure, "run": run}
    show(survivors.show_tokens(model, text, **how), json)
