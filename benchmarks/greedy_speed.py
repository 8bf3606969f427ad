"""How long a greedy run takes: the published loop beside espalier, in one run, on one thread.

    python benchmarks/greedy_speed.py                 both models; writes benchmarks/results/greedy_speed.md
    python benchmarks/greedy_speed.py --model bert    one of them

A whole run of the published loop takes days, so both sides are timed at the same few depths (some heads
already gone) and the time between is taken to be linear. At each depth the published loop makes one of its
sweeps, which are all alike, and measures accuracy; espalier makes several greedy steps, each with scoring
and accuracy. Weights are random: the time does not depend on them. Sentences are as long as those of the
SST-2 development set. Seconds are of the processor, so that others who use it do not count.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from published_loop import Patient, accuracy, low_first, standard, sweep
from rich.console import Console
from rich.table import Table

from espalier import Batches, Mask, Scores, criteria, lowest, masked, sites
from espalier.engine.cache import ActivationCache
from espalier.engine.precision import arithmetic, speed_up
from espalier.evaluation.predictions import PredictionCollector, predict
from espalier.pruning.working_copy import WorkingCopy
from espalier.selection.pace import Pace
from espalier.tasks.batches import make_batches

RESULTS = Path(__file__).parent / "results" / "greedy_speed.md"
# tokens of SST-2's development sentences with BERT's tokenizer: the lengths at 0, 5, … 100 % of them
LENGTHS = [4, 10, 12, 14, 16, 17, 19, 20, 21, 23, 24, 26, 27, 29, 30, 32, 34, 37, 40, 44, 55]
DEPTHS = (0.0, 0.25, 0.5, 0.75, 0.95)
CACHE = 5 * 2**29  # bytes
Clock = Callable[[], float]


@dataclass(frozen=True)
class Shape:
    name: str
    config: Callable[[], Any]
    sentences: int
    batch: int  # as published
    steps: int  # greedy steps timed at each depth


SHAPES = {
    "bert": Shape("BERT-base shape, 144 heads", lambda: transformers.BertConfig(num_labels=3), 128, 32, 4),
    "roberta": Shape(
        "RoBERTa-large shape, 384 heads",
        lambda: transformers.RobertaConfig(
            num_hidden_layers=24,
            hidden_size=1024,
            num_attention_heads=16,
            intermediate_size=4096,
            max_position_embeddings=514,
            vocab_size=50265,
            num_labels=3,
            pad_token_id=1,
        ),
        48,
        4,
        4,
    ),
}


class Padding:
    """All that batching needs of a tokenizer."""

    def __init__(self, token: int):
        self.token = token

    def pad(self, rows: list[dict[str, list[int]]], return_tensors: str = "pt") -> dict[str, Any]:
        longest = max(len(row["input_ids"]) for row in rows)
        ids = torch.full((len(rows), longest), self.token)
        mask = torch.zeros(len(rows), longest, dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
            mask[i, : len(row["input_ids"])] = 1
        return {"input_ids": ids, "attention_mask": mask}


def text(shape: Shape, n: int | None = None, seed: int = 0) -> tuple[list[dict[str, list[int]]], list[int]]:
    """Sentences of random words, as long as SST-2's, in an order of their own; and answers."""
    draw, n = np.random.default_rng(seed), n or shape.sentences
    places = (np.arange(n) + 0.5) / n
    lengths = np.interp(places, np.linspace(0, 1, len(LENGTHS)), LENGTHS).round().astype(int)
    rows = [{"input_ids": draw.integers(1000, 20000, k).tolist()} for k in draw.permutation(lengths)]
    return rows, draw.integers(0, 3, n).tolist()


def model_of(shape: Shape, attention: str = "sdpa") -> Any:
    torch.manual_seed(0)
    config = shape.config()
    config._attn_implementation = attention
    return transformers.AutoModelForSequenceClassification.from_config(config).eval()


def seconds(work: Callable[[], Any], clock: Clock = time.process_time) -> float:
    return timed(work, clock)[0]


def timed(work: Callable[[], Any], clock: Clock = time.process_time) -> tuple[float, Any]:
    start = clock()
    made = work()
    return clock() - start, made


def peak(dtype: torch.dtype = torch.float32, size: int = 1024) -> float:
    """Multiplications and additions a second of a product of matrices: the best of many."""
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    times = [seconds(lambda: a @ b) for _ in range(12)]
    return 2 * size**3 / min(times)


def operations(config: Any, tokens: int, squares: int, kept: float = 1.0) -> float:
    """Of a forward and an activation-backward pass over real tokens; `squares` is the sum of length²."""
    d, layers = config.hidden_size, config.num_hidden_layers
    linear = 4 * d * d * kept + 2 * d * config.intermediate_size
    return 2 * layers * (2 * tokens * linear + 2 * 2 * squares * d * kept)


# The greedy loop, timed step by step -----------------------------------------------------------------------


class Greedy:
    """A greedy run of espalier's own parts: one pass scores and measures, the model is cut as it goes."""

    def __init__(
        self,
        model: Any,
        data: Batches,
        *,
        pooling: str = "example",
        precision: str = "fp32",
        cache: int = CACHE,
    ):
        self.model, self.data, self.pooling, self.precision = model, data, pooling, precision
        self.sites = sites(model, "heads")
        self.score, self.rest = criteria.load("gnorm"), WorkingCopy(model, self.sites)
        data.cache = ActivationCache(cache, graphs=True)
        self.mask = Mask.ones(self.sites)
        self.units = sum(site.units for site in self.sites)

    def look(self) -> Scores:
        """Score the model as it is, and hear its answers in the same pass."""
        heard = PredictionCollector(self.data)
        self.data.on_output = heard
        with self.rest.at(self.mask) as (model, living), arithmetic(self.precision):
            found = self.score(model, living, self.data, pooling=self.pooling)
        self.right = heard.predictions().values
        full = Scores()
        for site in self.sites:
            full[site.name] = torch.full(site.shape, -torch.inf, dtype=torch.float64)
            full[site.name][self.mask[site.name]] = found[site.name]
        return full

    def step(self, cut: int = 1) -> tuple[int, int]:
        """One greedy step; the unit that went (the last of several)."""
        scores, before = self.look(), self.mask
        left = round(before.kept * self.units) - cut
        self.mask = lowest(scores, left / self.units, mask=before)
        return gone(self.sites, before, self.mask)[-1]

    def living(self, scores: Scores) -> list[tuple[int, int]]:
        names = [site.name for site in self.sites]
        alive = [(i, int(u)) for i, n in enumerate(names) for u in self.mask[n].nonzero().flatten()]
        return sorted(alive, key=lambda unit: float(scores[names[unit[0]]][unit[1]]))


def gone(found: list[Any], before: Mask, after: Mask) -> list[tuple[int, int]]:
    return [
        (i, int(u))
        for i, site in enumerate(found)
        for u in (before[site.name] & ~after[site.name]).nonzero().flatten()
    ]


def whole(times: dict[float, float], units: int) -> float:
    """Seconds of a run to the last head, from those of a step at some depths."""
    depths = np.linspace(0, 1, units, endpoint=False)
    return float(np.interp(depths, list(times), list(times.values())).sum())


def bench(key: str, full: bool) -> Iterator[dict[str, Any]]:
    """Rows of the table, one after the other."""
    shape = SHAPES[key]
    rows, labels = text(shape)
    model = model_of(shape)
    config = model.config
    for p in model.parameters():
        p.requires_grad_(False)
    pad = Padding(config.pad_token_id or 0)
    lengths = np.array([len(row["input_ids"]) for row in rows])
    best = peak()
    groups = make_batches(rows, pad, labels, size=shape.batch)
    data = make_batches(rows, pad, labels)
    found = sites(model, "heads")
    units = sum(site.units for site in found)
    # the way down: by the scores of the unpruned model
    order = criteria.load("gnorm")(model, found, data)
    states = {d: lowest(order, 1 - round(d * units) / units) for d in DEPTHS}

    published, picks = published_times(shape, rows, labels, pad, found, states)
    base = whole(published, units)
    yield {
        "": f"published loop, one of {config.num_hidden_layers} sweeps timed",
        "one step, unpruned, s": published[0.0],
        "whole run, h": base / 3600,
        "times faster": 1.0,
    }
    for name, pooling, batches in (
        ("espalier, pooling=batch, fp32", "batch", groups),
        ("espalier, pooling=example, fp32", "example", data),
    ):
        times, first, chosen = espalier_times(model, batches, states, shape.steps, pooling)
        total = whole(times, units)
        yield {
            "": name,
            "one step, unpruned, s": times[0.0],
            "whole run, h": total / 3600,
            "times faster": base / total,
            "same head": f"{sum(picks[d] == chosen[d] for d in DEPTHS)} of {len(DEPTHS)}"
            if pooling == "batch"
            else "",
            "of the limit": operations(config, int(lengths.sum()), int((lengths**2).sum())) / best / first,
        }
    yield from paced(model, data, base, full)
    yield from accuracy_only(model, rows, labels, pad, shape)
    yield from half(model, rows, labels, pad, base, config, units, best)


def published_times(
    shape: Shape, rows: Any, labels: Any, pad: Padding, found: Any, states: dict[float, Mask]
) -> tuple[dict[float, float], dict[float, tuple[int, int]]]:
    """Seconds of one step at each depth, and the head that would go."""
    patient = Patient(model_of(shape, "eager"))
    patient.model.config.output_attentions = True
    batches = [pad.pad(rows[i : i + shape.batch]) for i in range(0, len(rows), shape.batch)]
    singles = [pad.pad([row]) for row in rows]
    layers, times, picks = len(patient.blocks), {}, {}
    before = Mask.ones(found)
    for depth, mask in states.items():
        for layer, head in gone(found, before, mask):
            patient.remove(layer, head)
        before = mask
        sweeping, norms = timed(lambda: sweep(patient, batches, range(layers)))
        times[depth] = layers * sweeping + seconds(lambda: accuracy(patient, singles, labels))
        picks[depth] = low_first(standard(norms.prod(0)), patient.mask)
        told(f"published, {depth:.0%} gone: {times[depth]:.1f} s a step")
    return times, picks


def espalier_times(
    model: Any,
    data: Batches,
    states: dict[float, Mask],
    steps: int,
    pooling: str,
    precision: str = "fp32",
) -> tuple[dict[float, float], float, dict[float, tuple[int, int]]]:
    """Seconds of a greedy step at each depth; of the first, which has nothing to go on from; the heads."""
    times, chosen = {}, {}
    run = Greedy(model, data, pooling=pooling, precision=precision)
    run.look()  # the processor warms up
    firsts = []
    for _ in range(3):
        data.cache.clear()
        firsts.append(seconds(run.look))
    told(f"espalier {pooling} {precision}, from nothing: {', '.join(f'{t:.2f}' for t in firsts)} s")
    for depth, mask in states.items():
        run.mask = Mask(mask)
        data.cache.clear()
        jump, chosen[depth] = timed(run.step)
        left = round(run.mask.kept * run.units)
        times[depth] = np.mean([seconds(run.step) for _ in range(min(steps, left))]).item()
        told(f"espalier {pooling} {precision}, {depth:.0%} gone: {times[depth]:.2f} s a step ({jump:.2f})")
    data.cache.clear()
    return times, min(firsts), chosen


def paced(model: Any, data: Batches, base: float, full: bool) -> Iterator[dict[str, Any]]:
    """step=auto, a whole run of it; with `full`, held against a whole run of single steps."""
    run, pace, steps, auto = Greedy(model, data), Pace(), 0, list[Any]()
    run.look()

    def go() -> None:
        nonlocal steps
        while run.mask.kept:
            scores = run.look()
            order = run.living(scores)
            cut = pace.of(order)
            auto.extend(order[:cut])
            run.mask = lowest(scores, run.mask.kept - cut / run.units, mask=run.mask)
            steps += 1

    spent = seconds(go)
    told(f"step=auto: {steps} steps, {spent:.0f} s")
    row = {
        "": f"espalier, step=auto, {steps} scorings for {run.units} heads",
        "whole run, h": spent / 3600,
        "times faster": base / spent,
    }
    if full:
        one, singly = Greedy(model, data), list[Any]()

        def walk() -> None:
            while one.mask.kept:
                singly.append(one.step())

        row["agreement"] = agreement(singly, auto) if seconds(walk) else ""
    yield row


def agreement(a: list[Any], b: list[Any]) -> str:
    """Kendall's τ of two orders of removal, and how much of the removed they share at three depths."""
    from scipy.stats import kendalltau

    places = {unit: i for i, unit in enumerate(b)}
    tau = kendalltau(range(len(a)), [places[unit] for unit in a]).statistic
    shared = []
    for part in (0.25, 0.5, 0.75):
        k = round(part * len(a))
        shared.append(f"{len(set(a[:k]) & set(b[:k])) / k:.0%}")
    return f"τ {tau:.3f}, removed alike at 25, 50, 75 %: {', '.join(shared)}"


def accuracy_only(model: Any, rows: Any, labels: Any, pad: Padding, shape: Shape) -> Iterator[dict[str, Any]]:
    """A random trial, measured at every sixth head: espalier beside batches of 32 with gates on the heads."""
    rows, labels = text(shape, 2 * shape.sentences)
    data = make_batches(rows, pad, labels)
    plain = [pad.pad(rows[i : i + 32]) for i in range(0, len(rows), 32)]
    found = sites(model, "heads")
    scores = criteria.load("random")(model, found, seed=1)
    units = sum(site.units for site in found)
    levels = list(range(0, units + 1, 6 * units // 144))
    masks = [lowest(scores, 1 - k / units) for k in levels]
    rest, memory = WorkingCopy(model, found), ActivationCache(2**30)

    def ours() -> None:
        for mask in masks:
            with rest.at(mask) as (small, living):
                blocks = [site.block for site in living]
                state = [tuple(mask[site.name].tolist()) for site in living]
                with memory.over(blocks, state) as now:
                    predict(small, data, on_batch=now.begin)

    def theirs() -> None:
        for mask in masks[::4]:
            with torch.no_grad(), masked(model, mask):
                for batch in plain:
                    model(**batch).logits.argmax(-1)

    ours_, theirs_ = seconds(ours), seconds(theirs) / len(masks[::4]) * len(masks)
    yield {
        "": f"accuracy only, a random trial at {len(levels)} levels, against batches of 32",
        "whole run, h": ours_ / 3600,
        "times faster": theirs_ / ours_,
    }


def half(
    model: Any,
    rows: Any,
    labels: Any,
    pad: Padding,
    base: float,
    config: Any,
    units: int,
    best: float,
) -> Iterator[dict[str, Any]]:
    """bf16: timed where the processor has it; its order is compared either way, on a few sentences."""
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
    states = {d: lowest(score(model, found, data), 1 - d) for d in DEPTHS}
    times, first, _ = espalier_times(model, data, states, 4, "example", "bf16")
    lengths = np.array([len(r["input_ids"]) for r in rows])
    limit = operations(config, int(lengths.sum()), int((lengths**2).sum())) / peak(torch.bfloat16)
    total = whole(times, units)
    yield {
        **row,
        "": "espalier, pooling=example, bf16",
        "one step, unpruned, s": times[0.0],
        "whole run, h": total / 3600,
        "times faster": base / total,
        "of the limit": limit / first,
    }


def told(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    columns = list(dict.fromkeys(name for row in rows for name in row))

    def cell(name: str, value: Any) -> str:
        if value is None or value == "":
            return ""
        if isinstance(value, float):
            return f"{value:.0%}" if name == "of the limit" else f"{value:.3g}"
        return str(value)

    return [columns, *([cell(c, row.get(c)) for c in columns] for row in rows)]


def show(title: str, rows: list[dict[str, Any]]) -> str:
    """On the screen, and as Markdown."""
    head, *body = table(rows)
    grid = Table(title=title)
    for name in head:
        grid.add_column(name)
    for line in body:
        grid.add_row(*line)
    Console(width=170).print(grid)
    rule = ["---"] * len(head)
    lines = ["| " + " | ".join(line) + " |" for line in (head, rule, *body)]
    return f"## {title}\n\n" + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[*SHAPES, "all"], default="all")
    parser.add_argument("--full", action="store_true", help="compare step=auto with a whole plain run")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    pages = [
        "# A greedy run, timed\n",
        f"`{'python ' + ' '.join(['benchmarks/greedy_speed.py', *sys.argv[1:]])}` · one thread · torch "
        f"{torch.__version__} · transformers {transformers.__version__} · {platform.machine()}, fp32 peak "
        f"{peak() / 1e9:.0f} GFLOP/s, bf16 {peak(torch.bfloat16, 512) / 1e9:.0f} · cache "
        f"{CACHE / 2**30} GiB\n",
    ]
    for key in SHAPES if asked.model == "all" else [asked.model]:
        shape = SHAPES[key]
        title = f"{shape.name}, {shape.sentences} sentences"
        pages.append(show(title, list(bench(key, asked.full))))
        RESULTS.write_text("\n".join(pages), encoding="utf-8")
        told(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
