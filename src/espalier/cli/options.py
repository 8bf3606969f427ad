"""Options that several verbs share, in panels; and what a dotted `--set name=value` means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

DATA, TRAINING, MORE = "Data", "Training", "More"
POSITIONAL = ("model", "task", "method", "methods", "folder")  # passed to the API by place

Model = Annotated[str, typer.Argument(help="A name on the hub, a folder, or minilm (installed by pip).")]
Task = Annotated[
    str,
    typer.Option(
        help="demo, a GLUE task, a file or folder, train=FILE,test=FILE, or a dataset of the hub; see "
        "espalier list tasks."
    ),
]
Target = Annotated[
    str, typer.Option(help="heads, neurons or weights; with +embeddings, +head or +norms these too.")
]
Folder = Annotated[Path, typer.Option("--folder", "-o", help="The folder to write.")]
Tolerance = Annotated[
    float, typer.Option(min=0, max=1, help="How far below the unpruned model a choice may lie.")
]
Epochs = Annotated[int, typer.Option(min=0, help="Epochs of training; 0: none.", rich_help_panel=TRAINING)]
Lr = Annotated[float, typer.Option(help="The highest learning rate.", rich_help_panel=TRAINING)]
BatchSize = Annotated[int, typer.Option(min=1, help="Examples a step.", rich_help_panel=TRAINING)]
Examples = Annotated[
    int | None, typer.Option(min=1, help="Train on so many, drawn by the seed.", rich_help_panel=TRAINING)
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Discard what the folder holds.", rich_help_panel=TRAINING)
]
Calibration = Annotated[int, typer.Option(min=1, help="Training examples to score by.", rich_help_panel=DATA)]
Validation = Annotated[
    int, typer.Option(min=1, help="At most so many examples to choose by.", rich_help_panel=DATA)
]
Test = Annotated[
    int, typer.Option(min=1, help="At most so many examples to report on.", rich_help_panel=DATA)
]
MaxLength = Annotated[
    int, typer.Option(min=2, help="Tokens; longer texts are cut off.", rich_help_panel=DATA)
]
Columns = Annotated[
    str, typer.Option(help="Columns, as text=review,pair=reply,label=stars.", rich_help_panel=DATA)
]
Seed = Annotated[int, typer.Option(min=0, help="Of samples and random orders.", rich_help_panel=DATA)]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other keyword of the Python function, as split_seed=1 or trust_remote_code=true.",
        rich_help_panel=MORE,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON for programs instead of tables.", rich_help_panel=MORE)
]


def named(text: str, flag: str) -> dict[str, str]:
    """Return {"text": "review"} of `text=review,label=stars`."""
    found = {}
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = piece.partition("=")
        if not equals or not value:
            raise typer.BadParameter(f"{flag} takes NAME=VALUE with commas between; got {piece!r}")
        found[name.strip()] = value.strip()
    return found


def further(columns: str, words: list[str] | None, **given: Any) -> dict[str, Any]:
    """Return all keywords for the API: columns and `--set` beside those typed as options."""
    known = {"text", "pair", "label"}
    chosen = named(columns, "--columns")
    if unknown := set(chosen) - known:
        raise typer.BadParameter(f"--columns names {', '.join(sorted(known))}; got {min(unknown)!r}")
    pairs = [named(word.replace(",", "\0"), "--set") for word in words or ()]
    extra = {k.replace("-", "_"): _value(v.replace("\0", ",")) for pair in pairs for k, v in pair.items()}
    if twice := set(extra) & {*given, *chosen, *POSITIONAL}:
        name = min(twice)
        raise typer.BadParameter(f"--set {name}: this is an option of its own, --{name.replace('_', '-')}")
    return {**given, **chosen, **extra}


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            pass
    return text


def numbers(text: str, flag: str) -> dict[str, float]:
    """Return {"temperature": 2.0} of `temperature=2`."""
    try:
        return {name: float(value) for name, value in named(text, flag).items()}
    except ValueError:
        raise typer.BadParameter(f"{flag} takes NAME=NUMBER with commas between; got {text!r}") from None
