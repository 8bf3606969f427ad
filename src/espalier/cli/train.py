"""espalier train: fine-tune a model for a task."""

from __future__ import annotations

from pathlib import Path

from . import options as given
from .app import app, further
from .show import progress, show


@app.command(
    epilog="Examples: espalier train google-bert/bert-base-uncased --task sst2 -o tuned · "
    "espalier train minilm --task demo --epochs 2 --lr 1e-4 -o tuned · "
    "espalier train ./cut-model --task reviews.tsv --columns text=review,label=stars -o recovered"
)
def train(
    model: given.Model,
    task: given.Task,
    folder: given.Folder = Path("tuned"),
    epochs: given.Epochs = 3,
    lr: given.Lr = 5e-5,
    batch_size: given.BatchSize = 32,
    examples: given.Examples = None,
    overwrite: given.Overwrite = False,
    validation: given.Validation = 1000,
    max_length: given.MaxLength = 128,
    columns: given.Columns = "",
    seed: given.Seed = 0,
    set_: given.Set = None,
    dry_run: given.DryRun = False,
    json: given.Json = False,
) -> None:
    """Fine-tune a model, cut or not, and save it. A killed training resumes: repeat the command."""
    from .. import api

    training = {
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "examples": examples,
        "overwrite": overwrite,
    }
    data = {"validation": validation, "max_length": max_length, "seed": seed}
    more = further(columns, set_, dry_run=dry_run, **training, **data)
    with progress() as on_progress:
        found = api.train(model, task, folder, on_progress=on_progress, **more)
    show(found, json)
