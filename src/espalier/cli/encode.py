"""espalier encode and decode: sparse files, there and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as given
from .app import app
from .show import quiet_libraries, show

Source = Annotated[
    Path, typer.Argument(metavar="FILE_OR_FOLDER", help="A safetensors file, or the folder of a model.")
]
Target = Annotated[Path, typer.Option("--folder", "-o", help="The file to write, or for a model the folder.")]


@app.command(
    epilog="Examples: espalier encode sparse -o shipped · "
    "espalier encode model.safetensors -o sparse.safetensors · espalier encode sparse -o small --int8 --json"
)
def encode(
    source: Source,
    folder: Target,
    int8: Annotated[
        bool, typer.Option("--int8", help="Also store the matrices of the blocks in 8 bits: lossy.")
    ] = False,
    overwrite: given.Replace = False,
    json: given.Json = False,
) -> None:
    """Store the tensors of a file or a model without their zeros, each in its smallest encoding."""
    from ..reports import encoding

    quiet_libraries()
    show(encoding.encode(source, folder, int8=int8, overwrite=overwrite), json)


@app.command(
    epilog="Examples: espalier decode shipped -o plain · espalier decode a.safetensors -o b.safetensors"
)
def decode(
    source: Source, folder: Target, overwrite: given.Replace = False, json: given.Json = False
) -> None:
    """Write an encoded file, or model, as a plain one: bit for bit, except what --int8 rounded."""
    from ..reports import encoding

    quiet_libraries()
    show(encoding.decode(source, folder, overwrite=overwrite), json)
