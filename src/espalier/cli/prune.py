"""espalier prune: one strategy, and the smaller model at its end."""

from __future__ import annotations

import json as json_
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from . import options as given
from .app import app
from .progress import progress
from .show import Json, hush, say, table


@app.command(
    epilog="Examples: espalier prune tuned --task demo --by gnorm --keep 0.5 -o small · "
    "espalier prune tuned --task demo --by taylor --within 0.01 -o small"
)
def prune(
    model: given.Model,
    task: given.TaskName,
    by: Annotated[
        str, typer.Option(help="One strategy, spelled as for espalier compare.")
    ] = "gnorm",
    keep: Annotated[float | None, typer.Option(help="The fraction of the units to keep.")] = None,
    within: Annotated[
        float | None,
        typer.Option(help="Or: remove as long as validation stays this near the base."),
    ] = None,
    what: Annotated[str, typer.Option(help="heads or neurons")] = "heads",
    output: given.Output = Path("small"),
    calibrate: given.Calibrate = 256,
    validate: given.Validate = 1000,
    test: given.Test = 5000,
    length: given.Length = 128,
    text: given.Text = None,
    pair: given.Pair = None,
    label: given.Label = None,
    seed: given.Seed = 0,
    threads: given.Threads = None,
    trust_remote_code: given.Trust = False,
    json: Json = False,
) -> None:
    """Remove units by one strategy, measure before and after on test data, and save the smaller model."""
    hush()
    from .. import strategies
    from ..errors import EspalierError
    from ..experiment import Progress, compare, mask_at
    from ..results import read_run
    from .opening import opened

    if (keep is None) == (within is None):
        raise EspalierError("say how far to go: either --keep 0.5 or --within 0.01")
    asked = strategies.parse(by)
    if len(asked) > 1:
        raise EspalierError("prune takes one strategy; espalier compare takes several")
    bench = opened(
        model,
        task,
        kind=what,
        calibrate=calibrate,
        validate=validate,
        test=test,
        length=length,
        columns={"text": text, "pair": pair, "label": label},
        seed=seed,
        threads=threads,
        trust_remote_code=trust_remote_code,
    )
    strategy = asked[0]
    if (
        keep is not None
    ):  # only the two ends are measured; every step between is scored all the same
        units = sum(site.units for site in bench.sites)
        strategy = replace(strategy, every=units, trials=strategy.trials and 1)
    run = output.with_name(f"{output.name}-run")
    with progress("pruning") as tell:

        def watch(now: Progress) -> None:
            tell(now.done, now.total, f"{now.row['k']} removed")

        compare(bench, [strategy], run, keep=keep or 0.0, within=within, seed=seed, watch=watch)
    curve = read_run(run).curve(strategy.label)
    k = curve.removed[-1] if within is None else curve.unbroken(within)
    row = _saved(bench, mask_at(bench, run, strategy.label, k), strategy.label, run, output)
    if json:
        typer.echo(json_.dumps(row, indent=1))
        return
    table([{"": name, "before": pair[0], "after": pair[1]} for name, pair in row["shown"].items()])
    say(f"The model is in {output}, the rows in {run}. Load it: espalier.load({str(output)!r})")


def _saved(bench: Any, mask: Any, label: str, run: Path, output: Path) -> dict[str, Any]:
    """Cut, save, and the numbers of before and after: of the files, of the test part, of the clock."""
    import copy

    from ..latency import side_by_side
    from ..measure import change, cost, short
    from ..rows import read_rows
    from ..store import save
    from ..surgery import cut

    small = cut(copy.deepcopy(bench.model), mask, report=False)
    origin = {"strategy": label, "task": bench.task.name, "model": bench.name}
    save(small, output, tokenizer=bench.tokenizer, origin=origin)
    metric = bench.task.metric
    k = sum(int((~m).sum()) for m in mask.values())
    tested = {
        r["k"]: r["metrics"][metric] for r in read_rows(run / "rows.jsonl") if r["split"] == "test"
    }
    costs = cost(bench.model), cost(small)
    size = sum(f.stat().st_size for f in output.glob("*.safetensors"))
    seconds = side_by_side([bench.model, small], bench.test[len(bench.test) // 2])
    n = sum(map(len, bench.test.places))
    shown = {
        f"{metric} on {n} test examples": (f"{tested[0]:.4f}", f"{tested[k]:.4f}"),
        bench.kind: (str(getattr(costs[0], bench.kind)), str(getattr(costs[1], bench.kind))),
        "parameters": (
            short(costs[0].parameters),
            change(costs[0].parameters, costs[1].parameters),
        ),
        "block MACs at 128 tokens": (short(costs[0].macs), change(costs[0].macs, costs[1].macs)),
        "MB of weights": (f"{_bytes(bench.model) / 1e6:.1f}", f"{size / 1e6:.1f} (the file)"),
        "speed, measured": ("1.00×", f"{seconds[0] / seconds[1]:.2f}×"),
    }
    return {
        "strategy": label,
        "removed": k,
        "test": {"n": n, "metric": metric, "before": tested[0], "after": tested[k]},
        "before": costs[0].dict(),
        "after": costs[1].dict(),
        "bytes": {"before": _bytes(bench.model), "after": size},
        "speedup": seconds[0] / seconds[1],
        "folder": str(output),
        "run": str(run),
        "shown": shown,
    }


def _bytes(model: Any) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())
