"""What the strategies of a comparison chose, measured on data of today."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Any

import typer

from .show import table


def show_points(bench: Any, run: Path, within: float, json: bool) -> None:
    """What every strategy of a comparison chose, on the data asked for now."""
    from ..analysis.results import read_run
    from ..experiment import mask_at
    from ..experiment.assessment import PARTS, weights, worth
    from ..experiment.manifest import check_same_model
    from ..pruning.working_copy import WorkingCopy

    check_same_model(bench, run)
    results, rest, found = (
        read_run(run),
        WorkingCopy(bench.model, bench.sites),
        list[dict[str, Any]](),
    )
    for label in ("base", *results.labels):
        k = 0 if label == "base" else int(results.first(label).unbroken(within))
        with rest.at(mask_at(bench, run, label, k)) as (small, _):
            parts = {part: worth(bench, small, part) for part in PARTS}
            counted = weights(small)["parameters"]
        found.append({"strategy": label, "removed": k, "parameters": counted, **parts})
    if json:
        told = {"run": run.name, "model": bench.name, "task": bench.task.name, "within": within}
        typer.echo(json_.dumps({**told, "points": found}, indent=1))
        return
    said = f"each removed within {within:g} of the base in {run.name}"
    table([_point(row) for row in found], caption=f"{bench.name} on {bench.task.name}; {said}")


def _point(row: dict[str, Any]) -> dict[str, Any]:
    from ..evaluation.cost import short

    shown = {
        "strategy": row["strategy"],
        "removed": row["removed"],
        "parameters": short(row["parameters"]),
    }
    for part in ("validation", "test"):
        told = row[part]
        name = f"{told['metric']}, {told['n']} of {part}"
        shown[name] = f"{told[told['metric']]:.4f} [{told['low']:.4f}, {told['high']:.4f}]"
    return shown
