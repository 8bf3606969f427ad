"""espalier prune --what weights: single weights to zero, at once or while the model is trained."""

from __future__ import annotations

import json as json_
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import EspalierError, suggest
from .groups import Data
from .progress import progress
from .repair import repaired
from .show import say, table

Scope = Annotated[
    str | None,
    typer.Option(
        help="Weights: the lowest of the model (global), of each matrix (layer), of each row, or N:M, as "
        "2:4. If not said, the criterion's own."
    ),
]
Schedule = Annotated[
    str, typer.Option(help="Weights: one-shot, linear, cubic, geometric or cubed.")
]
Epochs = Annotated[
    int,
    typer.Option(min=0, help="Weights: times through the examples while pruning; 0: no training."),
]
Rate = Annotated[float, typer.Option(help="Weights: the highest learning rate.")]
Batch = Annotated[int, typer.Option(min=1, help="Weights: examples a step.")]
Examples = Annotated[
    int | None, typer.Option(min=1, help="Weights: train on so many, drawn by the seed.")
]
Initial = Annotated[float, typer.Option(help="Weights: the fraction kept at the first step.")]
Until = Annotated[
    float, typer.Option(help="Weights: the share of the training over which it shrinks.")
]
Refresh = Annotated[
    int | None,
    typer.Option(min=1, help="Weights: steps between two masks; else fifty masks in all."),
]
Straight = Annotated[
    bool,
    typer.Option("--straight", help="Weights: pruned ones learn on unseen, and may come back."),
]
Lasso = Annotated[
    float, typer.Option("--l1", help="Weights: strength of a penalty that pulls them to zero.")
]
Also = Annotated[
    str,
    typer.Option(
        help="Weights: prune these too, with commas between: embeddings, head, norms. Only at once."
    ),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Weights: throw away what the folder holds, and start over.")
]


@dataclass(frozen=True)
class Way:
    """How weights come to zero."""

    scope: Scope = None
    schedule: Schedule = "cubic"
    epochs: Epochs = 0
    rate: Rate = 5e-5
    batch: Batch = 32
    examples: Examples = None
    initial: Initial = 1.0
    until: Until = 0.75
    refresh: Refresh = None
    straight: Straight = False
    l1: Lasso = 0.0
    also: Also = ""
    fresh: Fresh = False


WAY = Way()
LEARNED = "movement"  # its scores are learned while the weights are
OUTSIDE = ("embeddings", "head", "norms")


def check_alone(processes: int | None) -> None:
    """Several processes would write one folder."""
    if (processes or 1) > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise EspalierError(
            "weights are pruned in one process: leave --processes, or accelerate launch, out"
        )


def prune_weights(
    bench: Any,
    output: Path,
    way: Way,
    data: Data,
    *,
    by: str,
    keep: float | None,
    json: bool,
) -> None:
    """Prune, measure before and after, save with exact zeros."""
    from ..assessment import assess

    scope = way.scope or own_scope(by)
    if ":" in scope:
        keep = share_of(scope)
    if keep is None:
        raise EspalierError("say how many weights to keep: --keep 0.5, or --scope 2:4")
    if ":" in scope and way.epochs and way.schedule != "one-shot":
        raise EspalierError(f"{scope} has no fractions on the way: add --schedule one-shot")
    schedule = way.schedule if way.epochs else "one-shot"
    origin = {"task": bench.task.name, "split_seed": data.split_seed}
    origin |= {"notes": list(bench.task.notes)}
    origin |= {"model": bench.name, "what": "weights", "by": by, "scope": scope, "keep": keep}
    before = assess(bench)
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
        at_once(bench, regime, output, origin, also_of(way))
    after = assess(bench, folder=output)
    if json:
        row = {"by": by, "scope": scope, "keep": keep, "schedule": schedule, "folder": str(output)}
        typer.echo(json_.dumps({**row, "before": before, "after": after}, indent=1))
        return
    table(side_by_side(before, after))
    say(f"The model is in {output}; pruned weights are exact zeros in it, its shape is the same.")


def check_asked(output: Path, way: Way, *, by: str, keep: float | None) -> None:
    """What cannot be done is said before anything is loaded."""
    from ..placing import check_replaceable
    from ..selection import chooser

    criterion_of(by)
    check_untrained(way)
    also_of(way)
    scope = way.scope
    if scope is not None:
        chooser(scope)
    if scope and ":" in scope and keep is not None and abs(keep - share_of(scope)) > 1e-9:
        raise EspalierError(
            f"--scope {scope} keeps {share_of(scope):g} of the weights, and --keep says {keep:g}: "
            "leave --keep out"
        )
    if not way.epochs:  # a training knows its own folder, and goes on in it
        check_replaceable(output)


def check_untrained(way: Way) -> None:
    """Without a training there is nothing that could follow these. At once is one shot, whoever says so."""
    if way.epochs:
        return
    heard = replace(way, scope=None, also="")
    if heard.schedule == "one-shot":
        heard = replace(heard, schedule=WAY.schedule)
    said = said_of(heard)
    if said:
        raise EspalierError(
            f"{', '.join(said)} is for pruning while training: leave it out, or add --epochs 1"
        )


def said_of(group: Any) -> list[str]:
    """The options of a group that are not as they would be if nobody had said anything."""
    return [f"--{f.name}" for f in fields(group) if getattr(group, f.name) != f.default]


def also_of(way: Way) -> dict[str, bool]:
    """Which matrices outside the blocks are pruned too, as `sites` takes it."""
    named = [word.strip() for word in way.also.split(",") if word.strip()]
    for word in named:
        if word not in OUTSIDE:
            raise EspalierError(
                f"--also {word}: nothing is called so{suggest(word, OUTSIDE)} There are: "
                f"{', '.join(OUTSIDE)}"
            )
    if named and way.epochs:
        raise EspalierError(
            "--also prunes at once, and a training prunes the matrices of the blocks alone: leave --epochs "
            "or --also out"
        )
    return dict.fromkeys(named, True)


def check_unasked(way: Way) -> None:
    """Heads and neurons know nothing of these; to ignore them would look like having heard them."""
    said = said_of(way)
    if said:
        raise EspalierError(
            f"{', '.join(said)} is for single weights: leave it out, or add --what weights"
        )


def criterion_of(by: str) -> tuple[Any, dict[str, Any]]:
    """The one criterion and its options; the rest of a strategy says nothing about weights."""
    from .. import criteria
    from ..experiment import parse

    strategy, *others = parse(by)
    if others:
        raise EspalierError("prune takes one criterion; espalier compare takes several")
    found = criteria.load(strategy.criterion)
    if "weights" not in found.kinds:
        raise EspalierError(f"{by} scores {' and '.join(found.kinds)}, not single weights")
    plain = parse(strategy.criterion)[0]
    if replace(strategy, label=plain.label, options=plain.options) != plain:
        raise EspalierError(
            f"{by}: weights are pruned by a criterion and its options alone, as {strategy.criterion} or "
            f"{strategy.criterion}:option=value; static, greedy, reverse, trials, every and step are for "
            "heads and neurons"
        )
    if strategy.criterion == LEARNED and strategy.options:
        told = ", ".join(strategy.options)
        raise EspalierError(
            f"{by}: in a training the scores of movement are learned, and {told} is for scoring a model that "
            "stays as it is. Type --by movement --epochs 1"
        )
    return found, strategy.options


def own_scope(by: str) -> str:
    """Within what a criterion's scores compare; movement's within the model."""
    from .. import criteria

    return criteria.load(by.split(":")[0]).scope


def share_of(scope: str) -> float:
    """2:4 -> 0.5"""
    from ..selection import chooser

    chooser(scope)
    n, _, m = scope.partition(":")
    return int(n) / int(m)


def regime_of(bench: Any, *, by: str, scope: str, **options: Any) -> Any:
    """What prunes on the way: movement learns its scores, any other criterion is asked now and then."""
    from .. import criteria
    from ..selection import chooser
    from ..training.gradual import Gradual
    from ..training.movement import Movement

    choose = chooser(scope)
    found, own = criterion_of(by)
    if found is criteria.load(LEARNED):
        if options["straight"] or options["l1"]:
            raise EspalierError(
                "movement always learns behind its mask: leave --straight and --l1 out"
            )
        mine = {k: v for k, v in options.items() if k not in ("straight", "l1")}
        return Movement(scope=scope, **mine)

    def score(model: Any, sites: Any, batches: Any) -> Any:
        return found(model, sites, batches, **own)

    about = {"by": by, "scope": scope, "calibration": bench.calibrated_on.fingerprint()}
    return Gradual(score, choose=choose, batches=bench.calibration, about=about, **options)


def trained(bench: Any, learn: Any, output: Path, origin: Any, **options: Any) -> Any:
    """One training on the bench's own task, in the numbering of its model."""
    from ..anatomy import sites
    from ..training import train
    from ..training.gradual import sparsity
    from .train import _watch

    matrices = sites(bench.model, "weights")

    def evaluate(model: Any) -> dict[str, float]:
        value = bench.score(model, "validation")
        return {f"validation {bench.task.metric}": value, "sparsity": sparsity(matrices)["zero"]}

    with progress("training") as tell:
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


def at_once(
    bench: Any, regime: Any, output: Path, origin: dict[str, Any], also: dict[str, bool]
) -> None:
    """No training: score, choose, zero, save. SparseGPT repairs as it goes, where it can."""
    from ..anatomy import sites
    from ..placing import check_replaceable
    from ..store import save
    from ..surgery import zero
    from ..training.gradual import sparsity
    from ..training.masking import zeros_of

    if not hasattr(regime, "criterion"):
        raise EspalierError(
            "movement learns its scores while it trains: give it --epochs 1 or more"
        )
    check_replaceable(output)
    matrices = sites(bench.model, "weights", **also)
    if not repaired(bench, regime, matrices, origin, criterion_of(origin["by"])[1]):
        scores = regime.criterion(bench.model, matrices, regime.batches)
        zero(bench.model, regime.choose(scores, regime.keep, mask=zeros_of(matrices)))
    found = sparsity(matrices)
    origin = origin | {"sparsity": found} | ({"also": list(also)} if also else {})
    if also:
        said = f"{100 * found['zero']:.2f} % of {found['weights']:,} weights are zero"
        say(f"with {' and '.join(also)}: {said}")
    save(bench.model, output, tokenizer=bench.tokenizer, origin=origin)


def side_by_side(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, str]]:
    """A table of two assessments."""
    from ..measure import short

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
    lines["of the block matrices, zero"] = [
        f"{100 * found['sparsity']:.2f} %" for found in (before, after)
    ]
    lines["MB of weights, the file's after"] = [
        f"{found['bytes'] / 2**20:.2f}" for found in (before, after)
    ]
    return [{"": name, "before": a, "after": b} for name, (a, b) in lines.items()]
