"""espalier recover: train a pruned model again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as given
from .app import app, further, numbers
from .show import progress, show


@app.command(
    epilog="Examples: espalier recover small --task demo -o recovered · "
    "espalier recover sparse --task demo --way distill --teacher tuned --epochs 2 -o recovered · "
    "espalier recover small --task demo --way blockwise,distill,finetune --teacher tuned -o recovered"
)
def recover(
    model: given.Model,
    task: given.Task,
    folder: given.Folder = Path("recovered"),
    way: Annotated[
        str,
        typer.Option(help="finetune; distill or blockwise: learn from the dense model. Or several in order."),
    ] = "finetune",
    teacher: Annotated[
        str | None, typer.Option(help="To learn from: the dense model, a name or a folder.")
    ] = None,
    distillation: Annotated[
        str,
        typer.Option(
            help="As temperature=2,soft_weight=0.5; or hidden_weight.", rich_help_panel=given.TRAINING
        ),
    ] = "",
    lora: Annotated[
        int | None,
        typer.Option(
            help="Train additions of this rank (LoRA), not all weights.", rich_help_panel=given.TRAINING
        ),
    ] = None,
    epochs: Annotated[
        int, typer.Option(min=1, help="Epochs of each way.", rich_help_panel=given.TRAINING)
    ] = 1,
    lr: given.LrOfWay = None,
    batch_size: given.BatchSizeOfWay = None,
    examples: given.Examples = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, float16 or bfloat16 to save in. Default: as it is stored.",
            rich_help_panel=given.TRAINING,
        ),
    ] = None,
    overwrite: given.Overwrite = False,
    validation: given.Validation = 1000,
    test: given.Test = 5000,
    max_length: given.MaxLength = 128,
    columns: given.Columns = "",
    seed: given.Seed = 0,
    set_: given.Set = None,
    json: given.Json = False,
) -> None:
    """Fine-tune a pruned model, or distill the dense one into it. What is pruned stays pruned."""
    from .. import api

    data = {"validation": validation, "test": test, "max_length": max_length, "seed": seed}
    weights = numbers(distillation, "--distillation")
    taught = {"way": way, "teacher": teacher, "lora": lora, "distillation": weights}
    training = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "examples": examples}
    more = further(columns, set_, **taught, **training, **data, overwrite=overwrite, dtype=dtype)
    with progress() as on_progress:
        found = api.recover(model, task, folder, on_progress=on_progress, **more)
    show(found, json)
