"""espalier prune --what weights: single weights to zero, at once or while the model is trained."""

from __future__ import annotations

import json as json_
import math
from pathlib import Path
from typing import Any

import typer

from ..core.errors import EspalierError
from .groups import Data
from .progress import progress, stoppable
from .repair import repaired
from .show import console, say, table
from .ways import ONE_SHOT, Way, criterion_of, share_of


def prune_weights(
    bench: Any,
    source: Path,
    output: Path,
    way: Way,
    data: Data,
    *,
    by: str,
    keep: float | None,
    json: bool,
) -> None:
    """Prune, measure before and after, save with exact zeros."""
    from ..experiment.assessment import assess
    from ..training.gradual import sparsity

    scope = way.scope or own_scope(by)
    if ":" in scope:
        keep = share_of(scope)
    if keep is None:
        raise EspalierError("say how many weights to keep: --keep 0.5, or --scope 2:4")
    schedule = way.schedule if way.epochs else ONE_SHOT
    origin = {"task": bench.task.name, "split_seed": data.split_seed}
    origin |= {"notes": list(bench.task.notes)}
    origin |= {"model": bench.name, "what": "weights", "by": by, "scope": scope, "keep": keep}
    origin |= bench.told_outside()
    check_reachable(bench, scope, keep)
    with console(stderr=True).status("measuring it as it is"):
        before = assess(bench, folder=source)
    regime = regime_of(
        bench,
        by=by,
        scope=scope,
        keep=keep,
        schedule=schedule,
        initial=way.initial,
        until=way.until,
        every=way.refresh,
        straight=way.straight,
        l1=way.l1,
    )
    if way.epochs:
        options = {name: getattr(way, name) for name in ("epochs", "batch", "rate", "fresh")}
        options["seed"] = data.seed
        learn = bench.task.train.sample(way.examples, data.seed)
        trained(bench, learn, output, origin | {"schedule": schedule}, regime=regime, **options)
    else:
        at_once(bench, regime, output, origin)
    with console(stderr=True).status("measuring it pruned"):
        after = assess(bench, folder=output)
    found = sparsity(bench.sites)
    if json:
        row = {"by": by, "scope": scope, "keep": keep, "schedule": schedule, "folder": str(output)}
        row["pruned"] = {
            "also": list(bench.also),
            "weights": found["weights"],
            "zero": found["zero"],
        }
        typer.echo(json_.dumps({**row, "before": before, "after": after}, indent=1))
        return
    table(side_by_side(before, after))
    if bench.also:
        said = f"{100 * found['zero']:.2f} % of {found['weights']:,} weights are zero"
        say(f"with {' and '.join(bench.also)}: {said}")
    tell_dtype(bench, way.epochs)
    say(f"The model is in {output}; pruned weights are exact zeros in it, its shape is the same.")
    say(smaller(output))


def smaller(folder: Path) -> str:
    return f"A smaller file, without the zeros: espalier encode {folder} -o FOLDER"


def tell_dtype(bench: Any, trained: int) -> None:
    """A model that came in 16 bits and was trained is twice as large now."""
    import torch

    if trained and bench.stored != torch.float32:
        said = str(bench.stored).removeprefix("torch.")
        say(f"It came in {said} and is saved in float32: what was learned needs the digits.")


def check_reachable(bench: Any, scope: str, keep: float) -> None:
    """A model may come sparse: it cannot become less so. Said before anything is measured."""
    from ..selection.scopes import chooser
    from ..training.gradual import out_of_reach
    from ..training.held_mask import zeros_of

    living = zeros_of(bench.sites)
    if out_of_reach(chooser(scope), keep, living):
        raise EspalierError(
            f"{bench.name} is {100 * (1 - living.kept):.4g} % zero already, so --keep {keep:g} cannot be "
            f"reached: give --keep {math.floor(1000 * living.kept) / 1000:g} or less"
        )


def own_scope(by: str) -> str:
    """Within what a criterion's scores compare; movement's within the model."""
    from .. import criteria

    return criteria.load(by.split(":")[0]).scope


def regime_of(bench: Any, *, by: str, scope: str, **options: Any) -> Any:
    """What prunes on the way: movement learns its scores, any other criterion is asked now and then."""
    from .. import criteria
    from ..experiment.study_method import LEARNED
    from ..selection.scopes import chooser
    from ..training.gradual import Gradual
    from ..training.movement import Movement

    choose = chooser(scope)
    found, own = criterion_of(by)
    if found is criteria.load(LEARNED):
        mine = {k: v for k, v in options.items() if k not in ("straight", "l1")}
        return Movement(scope=scope, **bench.outside, **mine)

    def score(model: Any, sites: Any, batches: Any) -> Any:
        return found(model, sites, batches, **own)

    about = {"by": by, "scope": scope, "calibration": bench.calibrated_on.fingerprint()}
    return Gradual(
        score,
        choose=choose,
        batches=bench.calibration,
        about=about,
        **bench.outside,
        **options,
    )


def trained(bench: Any, learn: Any, output: Path, origin: Any, **options: Any) -> Any:
    """One training on the bench's own task, in the numbering of its model."""
    from ..training import train
    from ..training.gradual import sparsity
    from .train import _kept, _watch

    def evaluate(model: Any) -> dict[str, float]:
        value = bench.score(model, "validation")
        return {f"validation {bench.task.metric}": value, "sparsity": sparsity(bench.sites)["zero"]}

    with stoppable(lambda: _kept(output)), progress("training") as tell:
        return train(
            bench.model,
            bench.tokenizer,
            learn,
            kind=bench.task.kind,
            length=bench.length,
            folder=output,
            origin=origin,
            evaluate=evaluate,
            progress=_watch(tell),
            **options,
        )


def at_once(bench: Any, regime: Any, output: Path, origin: dict[str, Any]) -> None:
    """No training: score, choose, zero, save. SparseGPT repairs as it goes, where it can."""
    from ..io.atomic import check_replaceable
    from ..pruning.cut import zero
    from ..storage.save import save
    from ..training.gradual import sparsity
    from ..training.held_mask import zeros_of

    check_replaceable(output)
    if not repaired(bench, regime, origin, criterion_of(origin["by"])[1]):
        scores = regime.criterion(bench.model, bench.sites, regime.batches)
        zero(bench.model, regime.choose(scores, regime.keep, mask=zeros_of(bench.sites)))
    origin = origin | {"sparsity": sparsity(bench.sites)}
    with bench.as_it_came(bench.model):
        save(bench.model, output, tokenizer=bench.tokenizer, origin=origin)


def side_by_side(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, str]]:
    """A table of two assessments."""
    from ..evaluation.cost import short

    def shown(found: dict[str, Any], part: str) -> str:
        told = found[part]
        return f"{told[told['metric']]:.4f} [{told['low']:.4f}, {told['high']:.4f}]"

    lines = {
        f"{before[part]['metric']} on {before[part]['n']} {part} examples": [
            shown(found, part) for found in (before, after)
        ]
        for part in ("validation", "test")
    }
    lines["parameters"] = [short(found["parameters"]) for found in (before, after)]
    lines["of the block matrices, zero"] = [f"{100 * found['sparsity']:.2f} %" for found in (before, after)]
    lines["MiB of weights, the file's after"] = [f"{found['bytes'] / 2**20:.2f}" for found in (before, after)]
    return [{"": name, "before": a, "after": b} for name, (a, b) in lines.items()]
