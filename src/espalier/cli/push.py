"""espalier push: upload a folder to the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as given
from .app import app
from .show import quiet_libraries, say


@app.command(epilog="Examples: espalier push small me/small · espalier push small me/small --private")
def push(
    folder: Annotated[Path, typer.Argument(help="A folder with a model.")],
    name: Annotated[str, typer.Argument(help="Its name on the hub, as owner/name.")],
    private: Annotated[bool, typer.Option("--private", help="Create it for its owner alone.")] = False,
    json: given.Json = False,
) -> None:
    """Upload a model with its tokenizer and its card to the hub; log in first with hf auth login."""
    from .. import api

    quiet_libraries()
    address = api.push(folder, name, private=private)
    say(f'{{"url": "{address}"}}' if json else f"The model is at {address}", err=not json)
