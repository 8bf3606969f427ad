"""How weights come to zero: what can be typed about it, and what of that cannot be."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from ..core.errors import EspalierError, suggest
from .groups import said_of
from .options import positive

Scope = Annotated[
    str | None,
    typer.Option(
        help="Weights: the lowest of the model (global), of each matrix (layer), of each row, or N:M, as "
        "2:4. If not said, the criterion's own."
    ),
]
Schedule = Annotated[str, typer.Option(help="Weights: one-shot, linear, cubic, geometric or cubed.")]
Epochs = Annotated[
    int,
    typer.Option(min=0, help="Weights: times through the examples while pruning; 0: no training."),
]
Rate = Annotated[float, typer.Option(callback=positive, help="Weights: the highest learning rate.")]
Batch = Annotated[int, typer.Option(min=1, help="Weights: examples a step.")]
Examples = Annotated[int | None, typer.Option(min=1, help="Weights: train on so many, drawn by the seed.")]
Initial = Annotated[float, typer.Option(help="Weights: the fraction kept at the first step.")]
Until = Annotated[float, typer.Option(help="Weights: the share of the training over which it shrinks.")]
Refresh = Annotated[
    int | None,
    typer.Option(min=1, help="Weights: steps between two masks; else fifty masks in all."),
]
Straight = Annotated[
    bool,
    typer.Option("--straight", help="Weights: pruned ones learn on unseen, and may come back."),
]
Lasso = Annotated[float, typer.Option("--l1", help="Weights: strength of a penalty that pulls them to zero.")]
Also = Annotated[
    str,
    typer.Option(help="Weights: prune these too, with commas between: embeddings, head, norms."),
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
ONE_SHOT = "one-shot"


def check_alone(processes: int | None) -> None:
    """Several processes would write one folder."""
    if (processes or 1) > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise EspalierError("weights are pruned in one process: leave --processes, or accelerate launch, out")


def check_asked(way: Way, *, by: str, keep: float | None) -> None:
    """What cannot be done is said before anything is loaded."""
    from ..selection.scopes import chooser

    found, _ = criterion_of(by)
    check_untrained(way)
    check_learned(way, found)
    check_schedule(way, keep)
    check_inputs(also_of(way.also), by, found)
    scope = way.scope
    if scope is not None:
        chooser(scope)
    if scope is None or ":" not in scope:
        return
    if keep is not None and abs(keep - share_of(scope)) > 1e-9:
        raise EspalierError(
            f"--scope {scope} keeps {share_of(scope):g} of the weights, and --keep says {keep:g}: "
            "leave --keep out"
        )
    if way.epochs and way.schedule != ONE_SHOT:
        raise EspalierError(f"{scope} has no fractions on the way: add --schedule {ONE_SHOT}")


def check_schedule(way: Way, keep: float | None) -> None:
    """A way down that there is. With all of it at the first step there is none to describe."""
    from ..selection.schedules import Ramp
    from ..training.gradual import check_until

    Ramp(way.initial / 2 if keep is None else keep, 1, way.schedule, way.initial)
    check_until(way.until)
    said = said_of(Way(initial=way.initial, until=way.until, refresh=way.refresh))
    if said and way.schedule == ONE_SHOT:
        raise EspalierError(
            f"{', '.join(said)} is for weights that go little by little, and --schedule {ONE_SHOT} takes "
            "them at the first step: leave it out, or type --schedule cubic"
        )


def check_learned(way: Way, found: Any) -> None:
    """Movement scores nothing without a training, and is never without its mask in one."""
    from .. import criteria
    from ..experiment.study_method import LEARNED, check_trained

    if found is not criteria.load(LEARNED):
        return
    check_trained(LEARNED, way.epochs > 0)
    if way.straight or way.l1:
        raise EspalierError("movement always learns behind its mask: leave --straight and --l1 out")


def check_untrained(way: Way) -> None:
    """Without a training there is nothing that could follow these. At once is one shot, whoever says so."""
    if way.epochs:
        return
    heard = replace(way, scope=None, also="")
    if heard.schedule == ONE_SHOT:
        heard = replace(heard, schedule=WAY.schedule)
    said = said_of(heard)
    if said:
        raise EspalierError(
            f"{', '.join(said)} is for pruning while training: leave it out, or add --epochs 1"
        )


def also_of(text: str) -> tuple[str, ...]:
    """Which matrices outside the blocks are pruned too."""
    from ..architectures.table import OUTSIDE, in_order

    named = [word.strip() for word in text.split(",") if word.strip()]
    for word in named:
        if word not in OUTSIDE:
            raise EspalierError(
                f"--also {word}: nothing is called so{suggest(word, OUTSIDE)} There are: {', '.join(OUTSIDE)}"
            )
    return in_order(named)


def check_inputs(also: tuple[str, ...], by: str, found: Any) -> None:
    """Embeddings and norms multiply nothing, and some criteria look at just that."""
    odd = [word for word in also if word != "head"]
    if odd and getattr(found, "inputs", False):
        raise EspalierError(
            f"{by} looks at what a matrix multiplies, and {' and '.join(odd)} multiply nothing: leave "
            f"--also {','.join(odd)} out, or take another criterion, as --by magnitude"
        )


def check_unasked(group: Any) -> None:
    """Heads and neurons know nothing of these; to ignore them would look like having heard them."""
    said = said_of(group)
    if said:
        raise EspalierError(f"{', '.join(said)} is for single weights: leave it out, or add --what weights")


def criterion_of(by: str) -> tuple[Any, dict[str, Any]]:
    """The one criterion and its options; the rest of a strategy says nothing about weights."""
    from .. import criteria
    from ..experiment import parse
    from ..experiment.study_method import LEARNED

    if found := re.search(r":scope=([^:]*(:\d+)?)", by):
        raise EspalierError(
            f"{by}: a scope is an option of its own here. Type --by {by.replace(found[0], '')} "
            f"--scope {found[1]}"
        )
    strategy, *others = parse(by)
    if others:
        raise EspalierError("prune takes one criterion; espalier compare takes several")
    loaded = criteria.load(strategy.criterion)
    if "weights" not in loaded.targets:
        raise EspalierError(f"{by} scores {' and '.join(loaded.targets)}, not single weights")
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
    return loaded, strategy.options


def share_of(scope: str) -> float:
    """2:4 -> 0.5"""
    from ..selection.scopes import chooser

    chooser(scope)
    n, _, m = scope.partition(":")
    return int(n) / int(m)
