"""espalier look: where a model can be cut."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options as given
from .app import app
from .show import quiet_libraries, say, show


@app.command(
    epilog="Examples: espalier look google-bert/bert-base-uncased · espalier look ./folder --json · "
    "espalier look llama --tokens 512 · espalier look falcon --infer > falcon.py"
)
def look(
    model: Annotated[str, typer.Argument(help="A name on the hub, a folder, a config file or a model type.")],
    tokens: Annotated[int, typer.Option(min=1, help="Sequence length the costs are quoted at.")] = 128,
    infer: Annotated[bool, typer.Option(help="Propose a table for an unknown architecture.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that the model brings along.")
    ] = False,
    json: given.Json = False,
) -> None:
    """Print the sites of a model: units, parameters and multiply-accumulates per unit."""
    from ..reports import catalogue

    quiet_libraries()
    found = catalogue.look(model, tokens=tokens, infer=infer, trust_remote_code=trust_remote_code)
    if infer and not json:
        say(found["table"].rstrip())
    show(found, json)
