"""espalier prune: one strategy, and the smaller model at its end."""

from __future__ import annotations

import json as json_
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from . import options as given
from . import ways
from .app import app
from .groups import DATA, ENGINE, MEASURING, Data, Engine, Measuring, spread
from .launching import parted, share_work
from .progress import keeping_rows, progress
from .show import Json, hush, say, table
from .weights import prune_weights


@app.command(
    epilog="Examples: espalier prune tuned --task demo --by gnorm --keep 0.5 -o small · "
    "espalier prune tuned --task demo --by taylor --within 0.01 -o small · "
    "espalier prune tuned --task demo --by gnorm --within 0.01 --from run -o small · "
    "espalier prune tuned --task demo --what weights --keep 0.2 --epochs 2 -o sparse"
)
@spread
def prune(
    model: given.Model,
    task: given.TaskName,
    by: Annotated[
        str | None,
        typer.Option(help="One strategy, spelled as for espalier compare; gnorm, or magnitude for weights."),
    ] = None,
    keep: Annotated[float | None, typer.Option(help="The fraction of the units to keep.")] = None,
    within: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Or: remove as long as validation stays this near the base."),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--from", help="Take the order from a finished comparison of this model."),
    ] = None,
    what: given.What = "heads",
    output: given.Output = Path("small"),
    way: ways.Way = ways.WAY,
    calibrate: given.Calibrate = 256,
    measuring: Measuring = MEASURING,
    data: Data = DATA,
    engine: Engine = ENGINE,
    json: Json = False,
) -> None:
    """Remove units by one strategy, measure before and after on test data, and save the smaller model."""
    weights = what == "weights"
    if weights:
        ways.check_alone(engine.processes)  # before others are started
    share_work(engine.processes, data.threads)
    hush()
    from ..analysis.results import read_run
    from ..core.errors import EspalierError
    from ..experiment import mask_at, parse
    from ..experiment.manifest import check_folder, check_same_model
    from ..experiment.method import check_keep
    from .opening import SAID, check_output, opened

    if weights and (within is not None or run is not None):
        raise EspalierError("weights are pruned to a fraction: --keep 0.5, without --within or --from")
    if way.epochs and not weights:
        raise EspalierError(
            "heads and neurons are cut first and trained then: leave --epochs out, and type "
            f"espalier recover {output} --task {task} --epochs {way.epochs} -o FOLDER afterwards"
        )
    if (keep is None) == (within is None) and not (weights and ":" in (way.scope or "")):
        ways_to_say = "--keep 0.5, or --scope 2:4" if weights else "either --keep 0.5 or --within 0.01"
        raise EspalierError(f"say how far to go: {ways_to_say}")
    check_keep(keep or 0.0)
    asked = parse(by or "gnorm") if not weights else []
    if len(asked) > 1:
        raise EspalierError("prune takes one strategy; espalier compare takes several")
    name, given_run = asked[0].label if asked else "", run is not None
    run = run or output.with_name(f"{output.name}-run")
    if weights:
        ways.check_asked(way, by=by or "magnitude", keep=keep)
    else:
        ways.check_unasked(way)
    if not way.epochs:  # a training knows its own folder, and goes on in it
        check_output(output, model)
    if given_run:
        read_run(run).curve(name)  # there, and of this strategy: known before anything is loaded
    elif not weights:
        check_folder(run)
    bench = opened(
        model,
        task,
        data,
        measuring,
        kind=what,
        calibrate=calibrate,
        engine=engine,
        also=ways.also_of(way.also),
        used=["test"] if given_run else SAID,
    )
    if weights:
        prune_weights(bench, Path(model), output, way, data, by=by or "magnitude", keep=keep, json=json)
        return
    stuck = next((s for s in bench.sites if s.part.uncuttable), None)
    if stuck is not None:
        raise EspalierError(f"{stuck.name} cannot be cut: {stuck.part.uncuttable}")
    if given_run:
        check_same_model(bench, run)
        _tell(run)
    else:
        _walk(bench, asked[0], run, keep, within, data.seed)
    if parted():
        return
    units = sum(site.units for site in bench.sites)
    k = units - round((keep or 0.0) * units)
    if within is not None:
        k = _within(read_run(run).first(name), within, units, run)
    row = _saved(bench, mask_at(bench, run, name, k), name, run, output)
    if json:
        typer.echo(json_.dumps(row, indent=1))
        return
    table(_before_and_after(row))
    say(f"The model is in {output}, the rows in {run}. Load it: espalier.load({str(output)!r})")


def _tell(run: Path) -> None:
    """Whose order it is: that of the run, with its examples, not with those typed here."""
    from ..io.json_file import read_json
    from .opening import parts_said

    told = read_json(run / "run.json")
    sizes = {part: told["parts"][part]["n"] for part in ("calibration", "validation")}
    say(f"the order is that of {run}: {told['task']}, {parts_said(sizes)}")


def _within(curve: Any, within: float, units: int, run: Path) -> int:
    """How many may go; a run that ended before the limit does not know."""
    from ..core.log import log

    k, last = curve.unbroken(within), curve.removed[-1]
    if k == last < units:
        log.warning(
            "%s ends at %d of %d removed, still within %g: more could perhaps go. Let it go on with a "
            "lower --keep (espalier compare … --keep 0 -o %s)",
            *(run, last, units, within, run),
        )
    return int(k)


def _walk(bench: Any, strategy: Any, run: Path, keep: float | None, within: float | None, seed: int) -> None:
    from ..experiment import Progress, compare
    from ..experiment.method import AUTO

    strategy = replace(strategy, trials=strategy.trials and 1)  # one order makes one model
    if keep is not None:  # measured now and then, so that a killed run has something to go on from
        units = sum(site.units for site in bench.sites)
        if strategy.step != AUTO:
            step = int(strategy.step)
            stops = max(1, units // 8) // step * step
            strategy = replace(strategy, every=strategy.every or stops or step)
    with keeping_rows(run), progress("pruning") as tell:

        def watch(now: Progress) -> None:
            tell(now.done, now.total, f"{now.row['k']} removed")

        compare(bench, [strategy], run, keep=keep or 0.0, within=within, seed=seed, watch=watch)


def _saved(bench: Any, mask: Any, label: str, run: Path, output: Path) -> dict[str, Any]:
    """Cut, save, and the numbers of before and after: of the file, of the test part, of the clock."""
    import copy

    from ..evaluation.cost import cost
    from ..evaluation.latency import side_by_side
    from ..pruning.cut import cut
    from ..storage.save import save

    small = cut(copy.deepcopy(bench.model), mask, report=False)
    k = sum(int((~m).sum()) for m in mask.values())
    before, after = _tested(bench, small, k, label, run)
    tested = {
        "n": sum(map(len, bench.test.places)),
        "metric": bench.task.metric,
        "before": before,
        "after": after,
    }
    origin = _origin(bench, label, run, k, tested)
    with bench.as_it_came(small):
        save(small, output, tokenizer=bench.tokenizer, origin=origin)
    seconds = side_by_side([bench.model, small], bench.test[len(bench.test) // 2])
    weights = sum(p.numel() for p in bench.model.parameters()) * bench.stored.itemsize
    return {
        "strategy": label,
        "kind": bench.target,
        "removed": k,
        "test": tested,
        "before": cost(bench.model).dict(),
        "after": cost(small).dict(),
        "bytes": {
            "before": weights,
            "after": sum(f.stat().st_size for f in output.glob("*.safetensors")),
        },
        "speedup": seconds[0] / seconds[1],
        "folder": str(output),
        "run": str(run),
    }


def _origin(bench: Any, label: str, run: Path, k: int, tested: dict[str, Any]) -> dict[str, Any]:
    """Where the cut comes from, for the folder of the model: the run, its examples, and what was tested."""
    from ..io.json_file import read_json

    told = read_json(run / "run.json")
    return {
        "strategy": label,
        "removed": k,
        "task": bench.task.name,
        "model": bench.name,
        "run": run.resolve().name,
        "seed": told["seed"],
        "calibration": told["parts"]["calibration"]["n"],
        "validation": told["parts"]["validation"]["n"],
        "test": tested["n"],
        "metric": tested["metric"],
        "test before": tested["before"],
        "test after": tested["after"],
        **bench.told_outside(),
    }


def _tested(bench: Any, small: Any, k: int, label: str, run: Path) -> list[float]:
    """Before and after on the test part of this very bench: from the run's rows if they are of the same."""
    from ..experiment.manifest import same_test
    from ..io.rows import read_rows

    rows = read_rows(run / "rows.jsonl") if same_test(bench, run) else []
    known = {
        r["k"]: r["metrics"][bench.task.metric]
        for r in rows
        if r["split"] == "test" and r["strategy"] in ("base", label) and not r["trial"]
    }
    models = ((0, bench.model), (k, small))
    return [known[n] if n in known else bench.score(model, "test") for n, model in models]


def _before_and_after(row: dict[str, Any]) -> list[dict[str, str]]:
    from ..evaluation.cost import short

    test, size, before, after = row["test"], row["bytes"], row["before"], row["after"]

    def less(name: str) -> tuple[str, str]:
        change = 1 - after[name] / before[name] if before[name] else 0.0
        return short(before[name]), f"{short(after[name])} (−{100 * change:.1f} %)"

    lines = {
        f"{test['metric']} on {test['n']} test examples": (
            f"{test['before']:.4f}",
            f"{test['after']:.4f}",
        ),
        row["kind"]: less(row["kind"]),
        "parameters": less("parameters"),
        f"block MACs at {before['tokens']} tokens": less("macs"),
        "MiB of weights, the file's after": (
            f"{size['before'] / 2**20:.2f}",
            f"{size['after'] / 2**20:.2f}",
        ),
        "speed, measured side by side": ("1.00×", f"{row['speedup']:.2f}×"),
    }
    return [{"": name, "before": a, "after": b} for name, (a, b) in lines.items()]
