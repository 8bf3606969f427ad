"""espalier train: fine-tune a model for a task."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated, Any

import typer

from . import options as given
from .app import app
from .groups import DATA, Data, spread
from .progress import progress, stoppable
from .show import Json, console, hush, plain, table


@app.command(
    epilog="Examples: espalier train google-bert/bert-base-uncased --task sst2 -o tuned · "
    "espalier train minilm --task demo --epochs 2 --rate 1e-4 -o tuned · "
    "espalier train ./cut-model --task reviews.tsv --text review --label stars -o recovered"
)
@spread
def train(
    model: given.Model,
    task: given.TaskName,
    output: given.Output,
    epochs: Annotated[int, typer.Option(min=1, help="Times through the examples.")] = 3,
    batch: Annotated[int, typer.Option(min=1, help="Examples a step.")] = 32,
    rate: given.Rate = 5e-5,
    examples: Annotated[int | None, typer.Option(min=1, help="Train on so many, drawn by the seed.")] = None,
    validate: Annotated[
        int, typer.Option(min=1, help="Most validation examples to measure on after each epoch.")
    ] = 1000,
    precision: Annotated[str, typer.Option(help="fp32, or bf16 where the processor has it.")] = "fp32",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Throw away what the folder holds, and start over.")
    ] = False,
    data: Data = DATA,
    json: Json = False,
) -> None:
    """Fine-tune a model, cut or not, and save it. A killed training goes on: type the same again."""
    hush()
    import torch

    from .. import training
    from ..experiment.session import open_model, open_task, short_name

    if data.threads:
        torch.set_num_threads(data.threads)
    screen = console(stderr=True)
    with screen.status(f"reading {plain(task)}"):
        found = open_task(task, seed=data.split_seed, **data.columns)
    found = found.sized(validation=validate, test=None, seed=data.seed)
    learn = found.train.sample(examples, data.seed)
    with screen.status(f"loading {plain(model)}"):
        learner, tokenizer = open_model(
            model, found, trust_remote_code=data.trust_remote_code, new_head=data.seed
        )
    with stoppable(lambda: _kept(output)), progress("training") as tell:
        history = training.train(
            learner,
            tokenizer,
            learn,
            kind=found.kind,
            epochs=epochs,
            batch=batch,
            rate=rate,
            length=data.length,
            seed=data.seed,
            precision=precision,
            folder=output,
            fresh=fresh,
            origin={
                "model": short_name(model),
                "task": found.name,
                "split_seed": data.split_seed,
                "notes": list(found.notes),
            },
            evaluate=_evaluation(found, learner, tokenizer, data.length, validate),
            progress=_watch(tell),
        )
    if json:
        typer.echo(json_.dumps({"folder": str(output), **history}, indent=1))
        return
    rows = [
        {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()}
        for row in history["epochs"]
    ]
    table(
        rows,
        caption=f"{output}: {len(learn)} examples, {history['steps']} steps "
        f"in {history['seconds']:.0f} seconds",
    )


def _evaluation(task: Any, model: Any, tokenizer: Any, length: int, most: int) -> Any:
    """What is measured after every epoch, or nothing where there is no validation part."""
    import numpy as np

    from ..evaluation.predictions import answer
    from ..experiment.session import batches_of
    from ..tasks.batches import longest

    part = task.validation
    if not len(part):
        return None
    length = min(length, longest(model, tokenizer))
    batches = batches_of(part, tokenizer, task.kind, length=length, upto=most)
    truth = None if part.labels is None else np.array(part.labels, dtype=float)

    def evaluate(model: Any) -> dict[str, float]:
        found = answer(model, batches, task.kind).metrics(task.kind, truth)
        return {f"validation {name}": value for name, value in found.items()}

    return evaluate


def _kept(folder: Path) -> str:
    """What an interrupted training leaves behind."""
    from ..training.checkpoint import read_state, state_file

    file = state_file(folder)
    if not file.exists():
        return "stopped before the first state was kept; type the same again to start over"
    step = read_state(file)[0]["step"]
    return f"stopped; the state after step {step} is in {folder}; type the same again to go on"


def _watch(tell: Any) -> Any:
    """Say how far it is; the loss is smoothed, for that of one batch says little."""
    smooth: list[float] = []

    def watch(now: Any) -> None:
        smooth[:] = [*smooth, now["loss"]][-20:]
        mean = sum(smooth) / len(smooth)
        words = f"epoch {now['epoch']}, loss {mean:.4f}, rate {now['rate']:.2e}"
        tell(now["step"], now["steps"], words)

    return watch
