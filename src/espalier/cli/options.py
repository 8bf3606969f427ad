"""Options that several verbs share: the task, its columns, how much of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.errors import EspalierError


def kind_of(text: str) -> str:
    """A wrong word is noticed before a model is loaded for it."""
    from ..architectures.table import check_target

    return check_target(text)


def positive(value: float) -> float:
    """Noticed before anything is loaded."""
    if not 0 < value < float("inf"):
        raise EspalierError(f"a learning rate is more than 0, as --rate 3e-5; got {value:g}")
    return value


Rate = Annotated[float, typer.Option(callback=positive, help="The highest learning rate.")]
What = Annotated[str, typer.Option(callback=kind_of, help="heads, neurons or weights")]
Model = Annotated[
    str, typer.Argument(help="A name on the hub, a local folder, or minilm (which comes by pip).")
]
TaskName = Annotated[
    str,
    typer.Option(
        "--task",
        help="demo, a GLUE task, a file or folder, train=FILE,test=FILE, or a dataset of the hub. "
        "Type espalier list tasks.",
    ),
]
MaybeTask = Annotated[
    str | None, typer.Option("--task", help="As for the other verbs; a recipe names its own.")
]
Text = Annotated[str | None, typer.Option(help="The column with the text, if not recognised.")]
Pair = Annotated[str | None, typer.Option(help="The column with the second text of a pair.")]
Label = Annotated[str | None, typer.Option(help="The column with the answer.")]
Calibrate = Annotated[int, typer.Option(min=1, help="Training examples to score by.")]
Validate = Annotated[int, typer.Option(min=1, help="Most validation examples to choose by.")]
Test = Annotated[int, typer.Option(min=1, help="Most test examples to report on.")]
Length = Annotated[int, typer.Option(min=2, help="Most tokens of a text; longer ones are cut off.")]
Seed = Annotated[int, typer.Option(help="Of samples and random orders.")]
SplitSeed = Annotated[
    int, typer.Option(help="Of the split, where a task has no parts of its own; keep it the same.")
]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that the model brings along.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Processor threads; all of them if not said.")]
Processes = Annotated[
    int | None,
    typer.Option(min=1, help="Share the work among so many processes; the answers are the same."),
]
Precision = Annotated[
    str, typer.Option(help="fp32, bf16, or auto: bf16 where the processor is faster in it.")
]
Cache = Annotated[
    float,
    typer.Option(min=0, help="GiB to spend on not computing again what a cut did not change."),
]
DeviceMap = Annotated[
    str | None,
    typer.Option(help="Spread a model over several GPUs: auto. Its units are then gated, not cut."),
]


def step_of(text: str | None) -> Any:
    """A number of units, or auto."""
    if text is None or text == "auto":
        return text
    if not text.isdigit() or int(text) < 1:
        raise typer.BadParameter(f"{text!r} is neither a whole number from 1 nor auto", param_hint="--step")
    return int(text)
