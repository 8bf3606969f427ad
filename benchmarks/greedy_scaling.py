"""How much faster a greedy run is in two processes, how much memory it takes, and how its time grows.

python benchmarks/greedy_scaling.py            writes benchmarks/results/greedy_scaling.md
python benchmarks/greedy_scaling.py memory     one section of it; the others stay as they were measured
python benchmarks/greedy_scaling.py --quick    a tiny model, in seconds; writes nothing
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from greedy_run import QUICK, SHAPES, Greedy, Padding, Shape, model_of, seconds, show, text

from espalier import Batches, criteria, sites
from espalier.core import distributed
from espalier.engine.cache import ActivationCache
from espalier.tasks.batches import make_batches

RESULTS = Path(__file__).parent / "results" / "greedy_scaling.md"


def score_worker(shape: Shape) -> None:
    """Score the sentences together with the other processes; rank 0 prints the seconds of wall time."""
    torch.set_num_threads(1)
    if distributed.is_launched():
        distributed.join()
    rows, labels = text(shape)
    run = Greedy(model_of(shape), make_batches(rows, Padding(0), labels), cache=0)
    run.score()
    distributed.barrier()
    spent = min(seconds(run.score, time.perf_counter) for _ in range(3))
    if distributed.rank() == 0:
        print(json.dumps(spent))
    distributed.leave_group()


def processes(quick: bool) -> Iterator[dict[str, Any]]:
    """Time one scoring in one process and in two, with one thread each."""
    times = {}
    for count in (1, 2):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        times[count] = run_worker([*launcher, __file__, "--worker", "score"], quick)
    yield {"times faster than one": times[1] / times[2]}


def run_worker(command: list[str], quick: bool) -> Any:
    """Run this file again in other processes, and return the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, *command, *["--quick"] * quick],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def memory_worker(shape: Shape, cache: float) -> None:
    """Make twelve greedy steps; print the bytes used at the peak, and what they were used for."""
    torch.set_num_threads(1)
    model = model_of(shape)
    rows, labels = text(shape)
    data = make_batches(rows, Padding(0), labels)
    Greedy(model, make_batches([{"input_ids": [1, 2]}], Padding(0), [0]), cache=0).step()  # loads libraries
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    run = Greedy(model, data, cache=int(cache * 2**30))
    for _ in range(12):
        run.step()
    peak = resident("VmHWM")
    shared = {id(p) for p in model.parameters()}
    with run.copy.at(run.mask) as (small, _):
        cut = sum(p.numel() * p.element_size() for p in small.parameters() if id(p) not in shared)
    probe = ActivationCache(2**40, graphs=True)
    largest = max(data, key=lambda batch: batch["input_ids"].numel())
    criteria.load("gnorm")(model, sites(model, "heads"), Batches([largest], cache=probe))
    print(json.dumps({"extra": peak - before, "cut": cut, "batch": probe.used, "cached": data.cache.used}))


def resident(name: str) -> int:
    """Return the bytes of this process in memory: VmRSS is now, VmHWM the peak."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name))
    return int(line.split()[1]) * 1024


def memory(quick: bool) -> Iterator[dict[str, Any]]:
    """Measure the memory of a run without a cache and with one of 1 GiB."""
    for cache in (0.0, 1.0):
        used = run_worker([__file__, "--worker", "memory", "--cache", str(cache)], quick)
        mib = {name: f"{value / 2**20:.0f}" for name, value in used.items()}
        yield {
            "cache, GiB": cache,
            "MiB above the loaded model, at the peak": mib["extra"],
            "largest batch": mib["batch"],
            "kept in the cache": mib["cached"],
            "cut weights, besides the model's own": mib["cut"],
        }


def growth(quick: bool) -> Iterator[dict[str, Any]]:
    """Time one scoring while one quantity grows and the others stay."""
    width = 8 if quick else 64  # of a head

    def scoring(layers: int = 6, heads: int = 6, n: int = 64) -> float:
        config = transformers.BertConfig(
            hidden_size=width * heads, num_attention_heads=heads, num_hidden_layers=layers,
            intermediate_size=1536, num_labels=3,
        )  # fmt: skip
        shape = Shape("", lambda: config, n, 32, 1)
        rows, labels = text(shape)
        run = Greedy(model_of(shape), make_batches(rows, Padding(0), labels), cache=0)
        run.score()
        return min(seconds(run.score) for _ in range(3))

    grown = {"sentences": ("n", (32, 64, 128, 256)), "layers": ("layers", (3, 6, 12, 24))}
    for label, (name, values) in grown.items():
        times = [scoring(**{name: value}) for value in values]
        yield {
            "one scoring, as this grows": label,
            **{f"{i + 1}": f"{v}: {t:.2f} s" for i, (v, t) in enumerate(zip(values, times))},
            "for twice as much": f"{(times[-1] / times[0]) ** (1 / 3):.2f} times",
        }
    # one more head is one more step: a full run grows with the number of steps
    shape = QUICK if quick else SHAPES["bert"]
    rows, labels = text(shape, 16)
    run = Greedy(model_of(shape), make_batches(rows, Padding(0), labels), cache=0)
    run.step()
    each = [seconds(lambda: [run.step() for _ in range(6)]) for _ in range(4)]
    yield {
        "one scoring, as this grows": "steps (heads)",
        **{f"{i + 1}": f"{6 * (i + 1)}: {sum(each[: i + 1]):.2f} s" for i in range(4)},
        "for twice as much": f"{(sum(each) / each[0]) ** 0.5:.2f} times",
    }


def read_sections() -> dict[str, str]:
    """Return the sections of the results file by their headings, so that one can be measured again alone."""
    page = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    return {section.splitlines()[0]: section for section in re.split(r"^(?=## )", page, flags=re.M)[1:]}


HEAD = """# A greedy run: processes, memory, growth

`python benchmarks/greedy_scaling.py [processes] [memory] [growth]` · BERT-base shape · 128 sentences · one
thread each
"""
SECTIONS = {
    "processes": ("Two processes", processes),
    "memory": ("Memory of a run", memory),
    "growth": ("How time grows", growth),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", help=f"{', '.join(SECTIONS)}; all of them by default")
    parser.add_argument("--quick", action="store_true", help="a tiny model, in seconds; writes nothing")
    parser.add_argument("--worker", choices=["score", "memory"], help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=float, default=0.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := set(arguments.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    torch.set_num_threads(1)
    shape = QUICK if arguments.quick else SHAPES["bert"]
    if arguments.worker == "score":
        score_worker(shape)
    elif arguments.worker == "memory":
        memory_worker(shape, arguments.cache)
    else:
        pages = read_sections()
        for name in arguments.sections or SECTIONS:
            title, measure = SECTIONS[name]
            page = show(title, list(measure(arguments.quick)))
            pages[page.splitlines()[0]] = page
        if not arguments.quick:
            RESULTS.write_text("\n".join([HEAD, *pages.values()]), encoding="utf-8")


if __name__ == "__main__":
    main()
