"""espalier recover: train a pruned model again, and say what came back."""

from __future__ import annotations

import json as json_
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from . import options as given
from . import weights as weight
from .app import app
from .groups import DATA, MEASURING, Data, Measuring, said_of, spread
from .show import Json, console, hush, plain, say, table

Temperature = Annotated[float, typer.Option(help="To distil: how soft the teacher's answers are.")]
Soft = Annotated[
    float, typer.Option(help="To distil: the weight of its answers beside the true ones, 0 to 1.")
]
Hidden = Annotated[float, typer.Option(help="To distil: the weight of hidden states.")]


@dataclass(frozen=True)
class Lesson:
    """What is learned from a teacher."""

    temperature: Temperature = 2.0
    soft: Soft = 0.5
    hidden: Hidden = 1.0


LESSON = Lesson()


@app.command(
    epilog="Examples: espalier recover small --task demo -o recovered · "
    "espalier recover sparse --task demo --with distil --teacher tuned --epochs 2 -o recovered"
)
@spread
def recover(
    model: given.Model,
    task: given.TaskName,
    output: given.Output,
    how: Annotated[
        str, typer.Option("--with", help="finetune, or distil: learn from the dense model.")
    ] = "finetune",
    teacher: Annotated[
        str | None, typer.Option(help="To distil: the dense model, a name or a folder.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Times through the examples.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Examples a step.")] = 32,
    rate: given.Rate = 3e-5,
    lesson: Lesson = LESSON,
    examples: Annotated[int | None, typer.Option(min=1, help="Train on so many, drawn by the seed.")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Throw away what the folder holds, and start over.")
    ] = False,
    measuring: Measuring = MEASURING,
    data: Data = DATA,
    json: Json = False,
) -> None:
    """Fine-tune a pruned model, or distil the dense one into it. Cut units stay cut, zero weights zero."""
    hush()
    from ..core.errors import EspalierError
    from ..experiment.assessment import assess
    from ..storage.resolve import weights_of
    from ..training.distillation import check_lesson
    from ..training.gradual import Hold
    from .opening import check_holds_model, opened

    if how not in ("finetune", "distil"):
        raise EspalierError(f"no way {how!r} to recover. Type --with finetune or --with distil")
    if (how == "distil") != (teacher is not None):
        raise EspalierError(
            "distillation needs the dense model to learn from, and only it does: "
            "--with distil --teacher FOLDER"
        )
    said = said_of(lesson)
    if said and teacher is None:
        raise EspalierError(
            f"{', '.join(said)} is for learning from the dense model: leave it out, or add "
            "--with distil --teacher FOLDER"
        )
    check_lesson(**asdict(lesson))
    if teacher is not None:
        check_holds_model(Path(teacher))
        weights_of(teacher, trust_remote_code=data.trust_remote_code)
    bench = opened(
        model,
        task,
        data,
        measuring,
        kind="weights",
        calibrate=1,
        used=(),
    )
    with console(stderr=True).status("measuring it as it is"):
        before = assess(bench, folder=Path(model))
    origin = {
        "task": bench.task.name,
        "split_seed": data.split_seed,
        "notes": list(bench.task.notes),
    }
    origin |= {"recovered": {"from": bench.name, "with": how}}
    origin |= bench.told_outside()
    more: dict[str, Any] = {}
    if teacher is not None:
        more["loss"] = _teacher(teacher, bench, data.trust_remote_code, **asdict(lesson))
        origin["recovered"]["teacher"] = more["loss"].name
    learn = bench.task.train.sample(examples, data.seed)
    options = {"epochs": epochs, "batch": batch, "rate": rate, "seed": data.seed, "fresh": fresh}
    history = weight.trained(bench, learn, output, origin, regime=Hold(**bench.outside), **options, **more)
    after = assess(bench, folder=output)
    if json:
        row = {"with": how, "steps": history["steps"], "folder": str(output)}
        typer.echo(json_.dumps({**row, "before": before, "after": after}, indent=1))
        return
    table(weight.side_by_side(before, after), caption=f"{history['steps']} steps")
    weight.tell_dtype(bench, epochs)
    say(f"The model is in {output}.")
    if after["sparsity"]:
        say(weight.smaller(output))


def _teacher(name: str, bench: Any, trust_remote_code: bool, **options: float) -> Any:
    from ..core.errors import EspalierError
    from ..experiment.session import open_model
    from ..training.distillation import Distillation, warn_if_equal

    with console(stderr=True).status(f"loading {plain(name)}"):
        teacher, tokenizer = open_model(name, bench.task, trust_remote_code=trust_remote_code)
    if tokenizer.get_vocab() != bench.tokenizer.get_vocab():
        raise EspalierError(
            f"{name} reads other tokens than the pruned model: it must be the one that was pruned"
        )
    theirs, ours = teacher.config.id2label, bench.model.config.id2label
    if bench.task.kind == "classification" and theirs != ours:
        raise EspalierError(f"{name} numbers its classes {theirs}, the pruned model {ours}")
    warn_if_equal(bench.model, teacher)
    short = Path(name).resolve().name if Path(name).exists() else name
    return Distillation(teacher, kind=bench.task.kind, name=short, **options)
