"""espalier train: fine-tune a model for a task."""

from __future__ import annotations

import json as json_
from typing import Annotated, Any

import typer

from . import options as given
from .app import app
from .progress import progress
from .show import Json, console, hush, plain, table


@app.command(
    epilog="Examples: espalier train google-bert/bert-base-uncased --task sst2 -o tuned · "
    "espalier train minilm --task demo --epochs 2 --rate 1e-4 -o tuned · "
    "espalier train ./cut-model --task reviews.tsv --text review --label stars -o recovered"
)
def train(
    model: given.Model,
    task: given.TaskName,
    output: given.Output,
    epochs: Annotated[int, typer.Option(min=1, help="Times through the examples.")] = 3,
    batch: Annotated[int, typer.Option(min=1, help="Examples a step.")] = 32,
    rate: Annotated[float, typer.Option(help="The highest learning rate.")] = 5e-5,
    length: given.Length = 128,
    examples: Annotated[
        int | None, typer.Option(min=1, help="Train on so many, drawn by the seed.")
    ] = None,
    validate: Annotated[
        int, typer.Option(min=1, help="Most validation examples to measure on after each epoch.")
    ] = 1000,
    precision: Annotated[
        str, typer.Option(help="fp32, or bf16 where the processor has it.")
    ] = "fp32",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Throw away what the folder holds, and start over.")
    ] = False,
    text: given.Text = None,
    pair: given.Pair = None,
    label: given.Label = None,
    seed: given.Seed = 0,
    split_seed: given.SplitSeed = 0,
    threads: given.Threads = None,
    trust_remote_code: given.Trust = False,
    json: Json = False,
) -> None:
    """Fine-tune a model, cut or not, and save it. A killed training goes on: type the same again."""
    hush()
    import torch

    from .. import training
    from ..workbench import open_task

    if threads:
        torch.set_num_threads(threads)
    screen = console(stderr=True)
    with screen.status(f"reading {plain(task)}"):
        found = open_task(task, seed=split_seed, text=text, pair=pair, label=label)
    found = found.sized(validation=validate, test=None, seed=seed)
    learn = found.train.sample(examples, seed)
    with screen.status(f"loading {plain(model)}"):
        learner, tokenizer = _open(model, found, seed, trust_remote_code)
    with progress("training") as tell:
        history = training.train(
            learner,
            tokenizer,
            learn,
            kind=found.kind,
            epochs=epochs,
            batch=batch,
            rate=rate,
            length=length,
            seed=seed,
            precision=precision,
            folder=output,
            fresh=fresh,
            origin={
                "task": found.name,
                "split_seed": split_seed,
                "notes": list(found.notes),
            },
            evaluate=_evaluation(found, tokenizer, length),
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


def _open(name: str, task: Any, seed: int, trust_remote_code: bool) -> tuple[Any, Any]:
    """The model with a head for the task; where it had none, or another, a new one drawn by the seed."""
    import torch
    import transformers

    from ..core import log
    from ..errors import EspalierError
    from ..sources import weights_of

    path = weights_of(name, trust_remote_code=trust_remote_code)
    head: dict[str, Any] = {}
    auto = transformers.AutoModelForCausalLM
    if task.kind != "language":
        auto = transformers.AutoModelForSequenceClassification
        head = {"num_labels": 1}
    if task.kind == "classification":
        classes = dict(enumerate(task.classes))
        head = {"num_labels": len(classes), "id2label": classes}
        head["label2id"] = {name: i for i, name in classes.items()}
    torch.manual_seed(seed)
    try:
        model, info = auto.from_pretrained(
            path,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            trust_remote_code=trust_remote_code,
            **head,
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            path, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # a checkpoint can be wrong in more ways than there are errors for
        first = " ".join(str(error).split()) or type(error).__name__
        raise EspalierError(f"cannot load {name}: {first}") from error
    odd = sorted(str(key[0] if isinstance(key, tuple) else key) for key in info["mismatched_keys"])
    body = [key for key in odd if key.startswith(f"{model.base_model_prefix}.")]
    if body:
        raise EspalierError(f"cannot load {name}: {body[0]} has another shape than its config says")
    if odd or info["missing_keys"]:
        log.info("new, to be learned: %s", ", ".join(sorted({*odd, *info["missing_keys"]})))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def _evaluation(task: Any, tokenizer: Any, length: int) -> Any:
    """What is measured after every epoch, or nothing where there is no validation part."""
    import numpy as np

    from ..batching import batched, blocks, encode, language_batches
    from ..evaluation import answer

    part, truth = task.validation, None
    if not len(part):
        return None
    if task.kind == "language":
        batches = language_batches(blocks(part, tokenizer, length=length), tokenizer)
    else:
        truth = np.array(part.labels, dtype=float)
        labels = truth.astype(int) if task.kind == "classification" else truth.astype(np.float32)
        rows = encode(part, tokenizer, length=min(length, tokenizer.model_max_length))
        batches = batched(rows, tokenizer, labels.tolist())

    def evaluate(model: Any) -> dict[str, float]:
        found = answer(model, batches, task.kind).metrics(task.kind, truth)
        return {f"validation {name}": value for name, value in found.items()}

    return evaluate


def _watch(tell: Any) -> Any:
    """Say how far it is; the loss is smoothed, for that of one batch says little."""
    smooth: list[float] = []

    def watch(now: Any) -> None:
        smooth[:] = [*smooth, now["loss"]][-20:]
        mean = sum(smooth) / len(smooth)
        words = f"epoch {now['epoch']}, loss {mean:.4f}, rate {now['rate']:.2e}"
        tell(now["step"], now["steps"], words)

    return watch
