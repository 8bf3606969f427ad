"""espalier encode and decode: sparse files, there and back."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated, Any

import typer

from .app import app
from .show import Json, hush, say, table

Source = Annotated[
    Path,
    typer.Argument(metavar="FILE_OR_FOLDER", help="A safetensors file, or the folder of a model."),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="The file to write, or of a model the folder.")]


@app.command(
    epilog="Examples: espalier encode sparse -o shipped · "
    "espalier encode model.safetensors -o sparse.safetensors · "
    "espalier encode model.safetensors -o small.safetensors --int8 --json"
)
def encode(
    file: Source,
    output: Output,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Also store the matrices of the blocks in 8 bits, a scale per row: lossy.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Store the tensors of a file or a model without their zeros, each as what makes it smallest."""
    from ..core.errors import EspalierError
    from ..storage.recode import encode_folder
    from ..storage.sparse_file import encode_files

    whole = file.is_dir()
    if whole:
        _check_folders(file, output)
    elif output.name == "model.safetensors" and (output.parent / "config.json").is_file():
        raise EspalierError(
            f"{output} is what {output.parent} is loaded from, and an encoded file there could not be. "
            f"For a folder without zeros: espalier encode {output.parent} -o OTHER"
        )
    before = _size(file)
    if whole:
        counts = encode_folder(file, output, int8=int8)
    else:
        counts = encode_files([file], output, int8=int8)
    _show(counts, file, before, output, json, gained=True)
    smaller, minus = _size(output) < 0.999 * before, sum(count.minus_zeros for count in counts)
    if minus * 1000 > before:  # bytes: a few come of rounding, and matter to nobody
        say(
            f"{minus} values are −0.0, which is kept bit for bit. If they came from multiplying by a mask, "
            "this makes them zeros: weight.masked_fill_(weight == 0, 0)"
        )
    elif not smaller:
        say("It has hardly any zeros, so nothing is gained by encoding it.")


@app.command(
    epilog="Examples: espalier decode shipped -o plain · "
    "espalier decode sparse.safetensors -o model.safetensors"
)
def decode(file: Source, output: Output, json: Json = False) -> None:
    """Write an encoded file, or model, as a plain one.

    It is bit for bit what it was made of, but for matrices that --int8 stored in 8 bits: those stay rounded.
    """
    from ..storage.recode import decode_folder
    from ..storage.sparse_file import decode_file

    if file.is_dir():
        _check_folders(file, output)
    before = _size(file)
    counts = decode_folder(file, output) if file.is_dir() else decode_file(file, output)
    _show(counts, file, before, output, json)
    if any("int8" in count.encoding for count in counts):
        say("What was stored in 8 bits stays rounded.")


def _check_folders(source: Path, output: Path) -> None:
    """A model there, and a place for it that holds no other work."""
    from ..core.errors import EspalierError
    from .opening import check_holds_model, check_output

    hush()
    check_holds_model(source)
    if output.suffix == ".safetensors":
        raise EspalierError(f"{source} is a model, which becomes a folder: choose another name than {output}")
    check_output(output, str(source))


def _size(place: Path) -> int:
    """Of a file, or of those that a model is loaded from; whoever reads it will say what is wrong."""
    from ..storage.recode import weight_files

    files = weight_files(place) if place.is_dir() else [place]
    return sum(file.stat().st_size for file in files if file.is_file())


def _show(counts: list[Any], file: Path, before: int, output: Path, json: bool, gained: bool = False) -> None:
    """A row for each encoding; with what was gained by it, where something was encoded."""
    after = _size(output)
    groups = {name: [c for c in counts if c.encoding == name] for name in _names(counts)}
    rows = [_row(name, group, gained) for name, group in groups.items()]
    if json:
        whole = {"before": before, "after": after}
        if gained:
            whole["bound"] = round(sum(c.bound for c in counts))
        typer.echo(json_.dumps({"tensors": len(counts), **whole, "encodings": rows}, indent=1))
        return
    rows.append(_row("all", counts, gained))
    caption = f"{output}: {after} bytes, {file}: {before}"
    if gained:
        caption += f", {before / max(after, 1):.2f} to one"
    table(rows, caption)


def _names(counts: list[Any]) -> list[str]:
    return sorted({c.encoding for c in counts}, key=lambda name: (name == "plain", name))


def _row(name: str, counts: list[Any], gained: bool) -> dict[str, Any]:
    before, after = sum(c.before for c in counts), sum(c.after for c in counts)
    row = {"encoding": name, "tensors": len(counts), "bytes before": before, "bytes after": after}
    if not gained:
        return row
    ratio = round(before / max(after, 1), 2)
    return {**row, "ratio": ratio, "information bound": round(sum(c.bound for c in counts))}
