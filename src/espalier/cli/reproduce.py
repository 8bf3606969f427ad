"""espalier reproduce: all steps of a published recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as given
from .app import app
from .show import progress, show


@app.command(
    epilog="Examples: espalier reproduce all-attention --task wikitext-103 -o all-attention · "
    "accelerate launch --multi_gpu -m espalier reproduce all-attention --task wikitext-103 -o all-attention"
)
def reproduce(
    recipe: Annotated[str, typer.Argument(help="A recipe of several steps, or a TOML file.")],
    task: given.Task,
    folder: given.Folder = Path("reproduction"),
    json: given.Json = False,
) -> None:
    """Train a language model, prune the trained one by gates, and time what is left. A killed run resumes."""
    from .. import api

    with progress() as on_progress:
        found = api.reproduce(recipe, task, folder, on_progress=on_progress)
    show(found, json)
