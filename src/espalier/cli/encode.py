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
    typer.Argument(metavar="FILE_OR_MODEL", help="A safetensors file, or the folder of a model."),
]
Output = Annotated[
    Path, typer.Option("--output", "-o", help="The file to write, or of a model the folder.")
]


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
    from ..errors import EspalierError
    from ..sparse_files import encode_files

    if file.is_dir():
        from ..recoding import encode_folder

        hush()
        encode_folder(file, output, int8=int8)
        _show_folders(file, output, json)
        return
    if output.name == "model.safetensors" and (output.parent / "config.json").is_file():
        raise EspalierError(
            f"{output} is what {output.parent} is loaded from, and an encoded file there could not be. "
            f"For a folder without zeros: espalier encode {output.parent} -o OTHER"
        )
    before = _size(file)
    counts = encode_files([file], output, int8=int8)
    _show(counts, file, before, output, json, gained=True)
    if minus := sum(count.minus_zeros for count in counts):
        say(
            f"{minus} values are −0.0, which is kept bit for bit. If they came from multiplying by a mask, "
            "this makes them zeros: weight.masked_fill_(weight == 0, 0)"
        )


@app.command(
    epilog="Examples: espalier decode shipped -o plain · "
    "espalier decode sparse.safetensors -o model.safetensors"
)
def decode(file: Source, output: Output, json: Json = False) -> None:
    """Write an encoded file, or model, as a plain one.

    It is bit for bit what it was made of, but for matrices that --int8 stored in 8 bits: those stay rounded.
    """
    from ..sparse_files import decode_file

    if file.is_dir():
        from ..recoding import decode_folder

        hush()
        decode_folder(file, output)
        _show_folders(file, output, json)
        return
    before = _size(file)
    _show(decode_file(file, output), file, before, output, json)


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0  # whoever reads it will say what is wrong


def _show_folders(source: Path, output: Path, json: bool) -> None:
    from ..recoding import weight_bytes

    before, after = weight_bytes(source), weight_bytes(output)
    if json:
        typer.echo(json_.dumps({"folder": str(output), "before": before, "after": after}, indent=1))
        return
    sizes = {"before": f"{before / 2**20:.2f}", "after": f"{after / 2**20:.2f}"}
    table([{"": "MiB of weights", **sizes}])
    say(f"The model is in {output}. Load it: espalier.load({str(output)!r})")


def _show(
    counts: list[Any], file: Path, before: int, output: Path, json: bool, gained: bool = False
) -> None:
    """A row for each encoding; with what was gained by it, where something was encoded."""
    after = output.stat().st_size
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
