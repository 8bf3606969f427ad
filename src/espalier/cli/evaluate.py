"""espalier evaluate: what any saved model is worth, and what it costs."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated, Any

import typer

from . import options as given
from .app import app
from .groups import DATA, MEASURING, Data, Measuring, spread
from .show import Json, hush, table


@app.command(
    epilog="Examples: espalier evaluate tuned --task demo · "
    "espalier evaluate sparse --task sst2 --json · espalier evaluate run --of tuned --task reviews.tsv"
)
@spread
def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_RUN",
            help="A name on the hub, a local folder, minilm, or the folder of a comparison of heads or "
            "neurons: then the model that each of its strategies chose.",
        ),
    ],
    task: given.TaskName,
    of: Annotated[
        str | None,
        typer.Option(help="Of a comparison: the model it was made with. It holds orders, no weights."),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Of a comparison: how near the base a choice stays, 0.01 by default.",
        ),
    ] = None,
    measuring: Measuring = MEASURING,
    data: Data = DATA,
    json: Json = False,
) -> None:
    """Measure a model, dense, cut or sparse, on validation and test data, with intervals, and count it."""
    hush()
    from ..experiment.assessment import assess
    from .opening import opened
    from .points import show_points

    folder = Path(model)
    kind = _kind(folder, of, within)
    bench = opened(
        of or model,
        task,
        data,
        measuring,
        kind=kind,
        calibrate=1,
        used=(),
    )
    if of is not None:
        show_points(bench, folder, 0.01 if within is None else within, json)
        return
    found = assess(bench, folder=folder if folder.is_dir() else None)
    if json:
        typer.echo(json_.dumps({"model": bench.name, "task": bench.task.name, **found}, indent=1))
        return
    table(_parts(found))
    table(_counts(found), caption=f"{bench.name} on {bench.task.name}")


def _kind(folder: Path, of: str | None, within: float | None) -> str:
    """What is pruned in it, if it is a comparison."""
    from ..core.errors import EspalierError
    from ..experiment import manifest
    from .opening import check_holds_model

    if not (folder / "rows.jsonl").is_file():
        if of is not None or within is not None:
            raise EspalierError(f"--of and --within are for the folder of a comparison, and {folder} is none")
        return "weights"
    kind = str(manifest.told(folder, "kind"))
    if kind == "weights":
        check_holds_model(folder)
    if of is None:
        raise EspalierError(
            f"{folder} is a comparison; it holds orders of removal and no weights. Say whose they are: "
            f"espalier evaluate {folder} --of MODEL --task TASK, or see its numbers: espalier report {folder}"
        )
    return kind


def _parts(found: dict[str, Any]) -> list[dict[str, str]]:
    rows = []
    for part in ("validation", "test"):
        told = dict(found[part])
        n, metric, low, high = (told.pop(name) for name in ("n", "metric", "low", "high"))
        shown = {name: f"{value:.4f}" for name, value in told.items()}
        rows.append({"part": part, "examples": str(n), **shown})
        rows[-1] |= {f"95 % of {metric}": f"[{low:.4f}, {high:.4f}]"}
    return rows


def _counts(found: dict[str, Any]) -> list[dict[str, str]]:
    from ..evaluation.cost import short

    return [
        {
            "parameters": short(found["parameters"]),
            "zero": short(found["zeros"]),
            "in block matrices": short(found["prunable"]),
            "zero there": f"{short(found['prunable zeros'])} ({100 * found['sparsity']:.2f} %)",
            "MiB": f"{found['bytes'] / 2**20:.2f}",
        }
    ]
