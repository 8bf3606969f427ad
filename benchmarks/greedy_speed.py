"""How long a greedy run takes: the published loop and espalier, compared in one run, on one thread.

    python benchmarks/greedy_speed.py                 both models; writes benchmarks/results/greedy_speed.md
    python benchmarks/greedy_speed.py --model bert    one of them
    python benchmarks/greedy_speed.py --quick         a tiny model, in seconds; writes nothing

A full run of the published loop takes days, so both are timed at the same few depths (some heads removed
already) and the time between them is interpolated. At each depth the published loop makes one of its sweeps,
which are all alike, and measures accuracy; espalier makes several greedy steps, each with scoring and
accuracy. Seconds are processor time.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from greedy_run import (
    CACHE,
    QUICK,
    SHAPES,
    Greedy,
    Padding,
    Shape,
    Unit,
    least_seconds,
    model_of,
    peak,
    removed_units,
    seconds,
    show,
    text,
    timed,
)
from published_loop import SlicedModel, accuracy, low_first, standard, sweep

from espalier import Batches, Mask, criteria, masked, remove_lowest, sites
from espalier.engine.cache import ActivationCache
from espalier.engine.precision import arithmetic, speed_up
from espalier.engine.products import fast_products
from espalier.evaluation.predictions import predict
from espalier.pruning.loop import WorkingCopy
from espalier.selection.pace import Pace
from espalier.tasks.batches import make_batches

RESULTS = Path(__file__).parent / "results" / "greedy_speed.md"
DEPTHS = (0.0, 0.25, 0.5, 0.75, 0.95)


def full_run(times: dict[float, float], units: int) -> float:
    """Return the seconds of a run to the last head, from those of a step at some depths."""
    depths = np.linspace(0, 1, units, endpoint=False)
    return float(np.interp(depths, list(times), list(times.values())).sum())


def bench(shape: Shape, full: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table as they are measured."""
    rows, labels = text(shape)
    model = model_of(shape)
    config = model.config
    for p in model.parameters():
        p.requires_grad_(False)
    pad = Padding(config.pad_token_id or 0)
    least = least_seconds(config, rows)
    groups = make_batches(rows, pad, labels, size=shape.batch_size)
    data = make_batches(rows, pad, labels)
    found = sites(model, "heads")
    units = sum(site.units for site in found)
    # the heads removed at each depth: the lowest by the scores of the unpruned model
    scores = criteria.load("gnorm")(model, found, data)
    states = {d: remove_lowest(scores, round(d * units) / units) for d in DEPTHS}

    published, picks = published_times(shape, rows, labels, pad, found, states)
    base = full_run(published, units)
    yield {
        "": f"published loop, one of {config.num_hidden_layers} sweeps timed",
        "one step, unpruned, s": published[0.0],
        "full run, h": base / 3600,
        "times faster": 1.0,
    }
    for name, pooling, batches in (
        ("espalier, pooling=batch, fp32", "batch", groups),
        ("espalier, pooling=example, fp32", "example", data),
    ):
        times, first, chosen = espalier_times(model, batches, states, shape.steps, pooling)
        total = full_run(times, units)
        same = f"{sum(picks[d] == chosen[d] for d in DEPTHS)} of {len(DEPTHS)}"
        yield {
            "": name,
            "one step, unpruned, s": times[0.0],
            "full run, h": total / 3600,
            "times faster": base / total,
            "same head": same if pooling == "batch" else "",
            "of the limit": least / first,
        }
    yield from paced(model, data, base, full)
    yield from accuracy_only(model, pad, shape)
    yield from half_precision(model, rows, labels, pad, base)


def published_times(
    shape: Shape, rows: Any, labels: Any, pad: Padding, found: Any, states: dict[float, Mask]
) -> tuple[dict[float, float], dict[float, Unit]]:
    """Return the seconds of one step at each depth, and the head that it would remove."""
    sliced = SlicedModel(model_of(shape, "eager"))
    sliced.model.config.output_attentions = True
    size = shape.batch_size
    batches = [pad.pad(rows[i : i + size]) for i in range(0, len(rows), size)]
    singles = [pad.pad([row]) for row in rows]
    layers, times, picks = len(sliced.blocks), {}, {}
    before = Mask.ones(found)
    for depth, mask in states.items():
        for layer, head in removed_units(found, before, mask):
            sliced.remove(layer, head)
        before = mask
        sweeping, norms = timed(lambda: sweep(sliced, batches, range(layers)))
        times[depth] = layers * sweeping + seconds(lambda: accuracy(sliced, singles, labels))
        picks[depth] = low_first(standard(norms.prod(0)), sliced.mask)
        log(f"published, {depth:.0%} removed: {times[depth]:.1f} s a step")
    return times, picks


def espalier_times(
    model: Any,
    data: Batches,
    states: dict[float, Mask],
    steps: int,
    pooling: str,
    precision: str = "fp32",
) -> tuple[dict[float, float], float, dict[float, Unit]]:
    """Return the seconds of a step at each depth, those of a scoring without a cache, and the heads."""
    times, chosen = {}, {}
    run = Greedy(model, data, pooling=pooling, precision=precision)
    run.score()  # warm-up
    firsts = []
    for _ in range(3):
        data.cache.clear()
        firsts.append(seconds(run.score))
    log(f"espalier {pooling} {precision}, without a cache: {', '.join(f'{t:.2f}' for t in firsts)} s")
    for depth, mask in states.items():
        run.mask = Mask(mask)
        data.cache.clear()
        first, chosen[depth] = timed(run.step)
        left = round(run.mask.kept * run.units)
        times[depth] = np.mean([seconds(run.step) for _ in range(min(steps, left))]).item()
        log(f"espalier {pooling} {precision}, {depth:.0%} removed: {times[depth]:.2f} s a step ({first:.2f})")
    data.cache.clear()
    return times, min(firsts), chosen


def paced(model: Any, data: Batches, base: float, full: bool) -> Iterator[dict[str, Any]]:
    """Time a full run with step=auto; with `full`, compare its order with that of single steps."""
    run, pace, scorings, auto = Greedy(model, data), Pace(), 0, list[Unit]()
    run.score()

    def run_auto() -> None:
        nonlocal scorings
        while run.mask.kept:
            scores = run.score()
            order = run.kept_units(scores)
            count = pace.of(order)
            auto.extend(order[:count])
            run.mask = remove_lowest(scores, 1 - (run.mask.kept - count / run.units), mask=run.mask)
            scorings += 1

    spent = seconds(run_auto)
    log(f"step=auto: {scorings} steps, {spent:.0f} s")
    row = {
        "": f"espalier, step=auto, {scorings} scorings for {run.units} heads",
        "full run, h": spent / 3600,
        "times faster": base / spent,
    }
    if full:
        single = Greedy(model, data)
        row["agreement"] = agreement([single.step() for _ in range(single.units)], auto)
    yield row


def agreement(a: list[Any], b: list[Any]) -> str:
    """Compare two orders of removal: Kendall's τ, and the share of equal units removed at three depths."""
    from scipy.stats import kendalltau

    places = {unit: i for i, unit in enumerate(b)}
    tau = kendalltau(range(len(a)), [places[unit] for unit in a]).statistic
    shared = []
    for depth in (0.25, 0.5, 0.75):
        k = round(depth * len(a))
        shared.append(f"{len(set(a[:k]) & set(b[:k])) / k:.0%}")
    return f"τ {tau:.3f}, removed alike at 25, 50, 75 %: {', '.join(shared)}"


def accuracy_only(model: Any, pad: Padding, shape: Shape) -> Iterator[dict[str, Any]]:
    """Time a random trial at 25 levels: espalier, and batches of 32 with gates on the heads."""
    rows, labels = text(shape, 2 * shape.sentences)
    data = make_batches(rows, pad, labels)
    plain = [pad.pad(rows[i : i + 32]) for i in range(0, len(rows), 32)]
    found = sites(model, "heads")
    scores = criteria.load("random")(model, found, seed=1)
    units = sum(site.units for site in found)
    levels = list(range(0, units + 1, 6 * units // 144))
    masks = [remove_lowest(scores, k / units) for k in levels]
    copy, cache = WorkingCopy(model, found), ActivationCache(2**30)

    def run_espalier() -> None:
        for mask in masks:
            with copy.at(mask) as (small, kept):
                blocks = [site.block for site in kept]
                states = [tuple(mask[site.name].tolist()) for site in kept]
                with cache.over(blocks, states) as now:
                    predict(small, data, on_batch=now.begin)

    def run_plain() -> None:
        for mask in masks[::4]:
            with torch.no_grad(), masked(model, mask):
                for batch in plain:
                    model(**batch).logits.argmax(-1)

    fast, slow = seconds(run_espalier), seconds(run_plain) / len(masks[::4]) * len(masks)
    yield {
        "": f"accuracy only, a random trial at {len(levels)} levels, against batches of 32",
        "full run, h": fast / 3600,
        "times faster": slow / fast,
    }


def half_precision(model: Any, rows: Any, labels: Any, pad: Padding, base: float) -> Iterator[dict[str, Any]]:
    """Compare the order in bf16 on a few sentences; time it where the processor is not slower in it."""
    faster = speed_up()
    few = make_batches(rows[:4], pad, labels[:4])
    found = sites(model, "heads")
    score = criteria.load("gnorm")
    orders = []
    for precision in ("fp32", "bf16"):
        with arithmetic(precision):
            flat = torch.cat(list(score(model, found, few).values()))
        orders.append(flat.argsort(stable=True).tolist())
    row: dict[str, Any] = {"agreement": f"of one scoring: {agreement(*orders)}"}
    if faster < 1:
        row[""] = f"bf16 not timed: a product of matrices is {1 / faster:.0f} times slower in it here"
        yield row
        return
    data = make_batches(rows, pad, labels)
    states = {d: remove_lowest(score(model, found, data), d) for d in DEPTHS}
    times, first, _ = espalier_times(model, data, states, 4, "example", "bf16")
    total = full_run(times, sum(site.units for site in found))
    yield {
        **row,
        "": "espalier, pooling=example, bf16",
        "one step, unpruned, s": times[0.0],
        "full run, h": total / 3600,
        "times faster": base / total,
        "of the limit": least_seconds(model.config, rows, torch.bfloat16) / first,
    }


def log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


@fast_products()  # also for the published loop
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[*SHAPES, "all"], default="all")
    parser.add_argument("--full", action="store_true", help="compare step=auto with a run of single steps")
    parser.add_argument("--quick", action="store_true", help="a tiny model, in seconds; writes nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pages = [
        "# A greedy run, timed\n",
        f"`{'python ' + ' '.join(['benchmarks/greedy_speed.py', *sys.argv[1:]])}` · one thread · torch "
        f"{torch.__version__} · transformers {transformers.__version__} · {platform.machine()}, fp32 peak "
        f"{peak() / 1e9:.0f} GFLOP/s, bf16 {peak(torch.bfloat16, 512) / 1e9:.0f} · cache "
        f"{CACHE / 2**30} GiB\n",
    ]
    shapes = list(SHAPES.values()) if arguments.model == "all" else [SHAPES[arguments.model]]
    for shape in [QUICK] if arguments.quick else shapes:
        title = f"{shape.name}, {shape.sentences} sentences"
        pages.append(show(title, list(bench(shape, arguments.full))))
        if not arguments.quick:
            RESULTS.write_text("\n".join(pages), encoding="utf-8")
            log(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
