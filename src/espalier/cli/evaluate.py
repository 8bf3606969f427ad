"""espalier evaluate: what any saved model is worth, and what it costs."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Any

import typer

from . import options as given
from .app import app
from .show import Json, hush, table


@app.command(
    epilog="Examples: espalier evaluate tuned --task demo · "
    "espalier evaluate sparse --task sst2 --json · espalier evaluate small --task reviews.tsv"
)
def evaluate(
    model: given.Model,
    task: given.TaskName,
    validate: given.Validate = 1000,
    test: given.Test = 5000,
    length: given.Length = 128,
    text: given.Text = None,
    pair: given.Pair = None,
    label: given.Label = None,
    seed: given.Seed = 0,
    split_seed: given.SplitSeed = 0,
    threads: given.Threads = None,
    trust_remote_code: given.Trust = False,
    json: Json = False,
) -> None:
    """Measure a model, dense, cut or sparse, on validation and test data, with intervals, and count it."""
    hush()
    from ..assessment import assess
    from .opening import opened

    folder = Path(model)
    _check(folder)
    bench = opened(
        model,
        task,
        kind="weights",
        calibrate=1,
        validate=validate,
        test=test,
        length=length,
        columns={"text": text, "pair": pair, "label": label},
        seed=seed,
        split_seed=split_seed,
        threads=threads,
        trust_remote_code=trust_remote_code,
        used=(),
    )
    found = assess(bench, folder=folder if folder.is_dir() else None)
    if json:
        typer.echo(json_.dumps({"model": bench.name, "task": bench.task.name, **found}, indent=1))
        return
    table(_parts(found))
    table(_counts(found), caption=f"{bench.name} on {bench.task.name}")


def _check(folder: Path) -> None:
    """Folders of espalier that hold no model, or not yet, say so better than transformers would."""
    from ..errors import EspalierError

    if (folder / "rows.jsonl").is_file():
        raise EspalierError(
            f"{folder} is a comparison; it holds numbers and no model. Type: espalier report {folder}"
        )
    if (folder / ".espalier-training").is_dir() and not (folder / "config.json").is_file():
        raise EspalierError(
            f"{folder} is a training that is not finished. Type its command again, and it goes on"
        )


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
    from ..measure import short

    return [
        {
            "parameters": short(found["parameters"]),
            "zero": short(found["zeros"]),
            "in block matrices": short(found["prunable"]),
            "zero there": f"{short(found['prunable zeros'])} ({100 * found['sparsity']:.2f} %)",
            "MB": f"{found['bytes'] / 2**20:.2f}",
        }
    ]
