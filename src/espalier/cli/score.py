"""espalier score: what each unit is worth, by one criterion."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated

import typer

from . import options as given
from .app import app
from .groups import DATA, Data, spread
from .show import Json, console, hush, say, table


@app.command(
    epilog="Examples: espalier score tuned --task demo --by gnorm -o scores.json · "
    "espalier score tuned --task demo --by gnorm:objective=loss --json"
)
@spread
def score(
    model: given.Model,
    task: given.TaskName,
    by: Annotated[str, typer.Option(help="A criterion, with options after colons.")] = "gnorm",
    what: given.What = "heads",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A JSON file to write.")] = None,
    calibrate: given.Calibrate = 256,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Examples a batch, in order (for pooling=batch).")
    ] = None,
    data: Data = DATA,
    json: Json = False,
) -> None:
    """Score every unit of a model on training examples; bigger means keep."""
    hush()
    from .. import criteria
    from ..core.errors import EspalierError
    from ..experiment import parse
    from ..experiment.scoring import as_json
    from ..io.json_file import write_json
    from ..reports.words import SCORES
    from .opening import opened

    asked, *more = parse(by)
    if more:
        raise EspalierError("score takes one criterion; espalier compare takes several")
    bench = opened(
        model,
        task,
        data,
        kind=what,
        calibrate=calibrate,
        batch=batch,
        used=["calibration"],
    )
    with console(stderr=True).status("scoring"):
        scores = criteria.load(asked.criterion)(bench.model, bench.sites, bench.calibration, **asked.options)
    found = {
        "model": bench.name,
        "task": bench.task.name,
        "criterion": asked.criterion,
        "options": asked.options,
        "n": sum(map(len, bench.calibration.places)),
        "scores": {name: as_json(values) for name, values in scores.items()},
    }
    unit = f": {SCORES[asked.criterion]}" if asked.criterion in SCORES else ""
    if output:
        write_json(output, found)
        say(f"written to {output}")
    if json:
        typer.echo(json_.dumps(found, indent=1))
    elif what == "heads":
        wide = max(len(values) for values in scores.values())
        table(
            [
                {"site": name, **{str(i): _at(values.tolist(), i) for i in range(wide)}}
                for name, values in scores.items()
            ],
            title=f"{asked.criterion}{unit}",
            caption=f"bigger means keep; {found['n']} training examples",
        )
    else:
        table(
            [
                {
                    "site": name,
                    "lowest": f"{values.min():.4g}",
                    "median": f"{values.median():.4g}",
                    "highest": f"{values.max():.4g}",
                }
                for name, values in scores.items()
            ],
            title=f"{asked.criterion}{unit}",
            caption="bigger means keep; --json or -o FILE has every score",
        )


def _at(values: list[float], i: int) -> str:
    return f"{values[i]:.2f}" if i < len(values) else ""
