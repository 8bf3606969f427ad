"""Options that several verbs share, in panels of the help page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DATA, TRAINING, MORE = "Data", "Training", "More"

Model = Annotated[str, typer.Argument(help="A name on the hub, a folder, or minilm (installed by pip).")]
Task = Annotated[
    str,
    typer.Option(
        help="demo, a GLUE task, a file or folder, train=FILE,test=FILE, or a dataset of the hub; see "
        "espalier list tasks."
    ),
]
Target = Annotated[
    str,
    typer.Option(
        help="heads, neurons, layers, attention, ffn, slots or weights (+embeddings, +head, +norms)."
    ),
]
Folder = Annotated[Path, typer.Option("--folder", "-o", help="The folder to write.")]
Tolerance = Annotated[
    str,
    typer.Option(help="How far below the unpruned model a choice may lie: 0.01 or 1pt; 1% of its value."),
]
Epochs = Annotated[int, typer.Option(min=0, help="Epochs of training; 0: none.", rich_help_panel=TRAINING)]
Lr = Annotated[float, typer.Option(help="The highest learning rate.", rich_help_panel=TRAINING)]
BatchSize = Annotated[int, typer.Option(min=1, help="Examples a step.", rich_help_panel=TRAINING)]
LrOfWay = Annotated[
    float | None,
    typer.Option(
        help="The highest learning rate. Default: 3e-5; blockwise alone 2e-4.", rich_help_panel=TRAINING
    ),
]
BatchSizeOfWay = Annotated[
    int | None,
    typer.Option(min=1, help="Examples a step. Default: 32; blockwise alone 8.", rich_help_panel=TRAINING),
]
Examples = Annotated[
    int | None, typer.Option(min=1, help="Train on so many, drawn by the seed.", rich_help_panel=TRAINING)
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Discard what the folder holds.", rich_help_panel=TRAINING)
]
REPLACE = "Replace any model or file; an earlier output of the same model is replaced without it."
Replace = Annotated[bool, typer.Option("--overwrite", help=REPLACE)]
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
Recipe = Annotated[
    str | None, typer.Option(help="A recipe (espalier list recipes) or a TOML file.", rich_help_panel=MORE)
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Say what would be done, and how long it should take.", rich_help_panel=MORE
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON for programs instead of tables.", rich_help_panel=MORE)
]
