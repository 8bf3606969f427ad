"""How a greedy run shares its work, how much memory it takes, and how its time grows.

python benchmarks/greedy_scaling.py            writes benchmarks/results/greedy_scaling.md
python benchmarks/greedy_scaling.py memory     one part of it; the others stay as they were measured
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
from greedy_speed import SHAPES, Greedy, Padding, Shape, model_of, seconds, show, text

from espalier import Batches, criteria, sites
from espalier.engine.cache import ActivationCache
from espalier.tasks.batches import make_batches

RESULTS = Path(__file__).parent / "results" / "greedy_scaling.md"


def worker() -> None:
    """One of several processes that score the same sentences; the first prints the seconds of the clock."""
    from espalier.core import distributed

    torch.set_num_threads(1)
    if distributed.is_launched():
        distributed.join()
    shape = SHAPES["bert"]
    rows, labels = text(shape, 128)
    model = model_of(shape)
    run = Greedy(model, make_batches(rows, Padding(0), labels), cache=0)
    run.look()
    distributed.barrier()
    spent = min(seconds(run.look, time.perf_counter) for _ in range(3))
    if distributed.rank() == 0:
        print(json.dumps(spent))
    distributed.leave()


def two_processes() -> float:
    """How many times faster two processes with a thread each are than one."""
    times = {}
    for count in (1, 2):
        shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
        env = {**os.environ, **shared, "OMP_NUM_THREADS": "1"}
        group = [
            subprocess.Popen(
                [sys.executable, __file__, "--worker"],
                env={**env, "RANK": str(n), "LOCAL_RANK": str(n)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for n in range(count)
        ]
        times[count] = json.loads(group[0].communicate()[0])
        for one in group:
            one.wait()
    return times[1] / times[2]


def memory_worker(cache: float) -> None:
    """A few steps in a process of its own; prints what it took at its peak, and the parts."""
    torch.set_num_threads(1)
    shape = SHAPES["bert"]
    model = model_of(shape)
    rows, labels = text(shape, 128)
    data = make_batches(rows, Padding(0), labels)
    Greedy(model, make_batches([{"input_ids": [1, 2]}], Padding(0), [0]), cache=0).step()  # loads libraries
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    run = Greedy(model, data, cache=int(cache * 2**30))
    for _ in range(12):
        run.step()
    peak_ = resident("VmHWM")
    whole = {id(p) for p in model.parameters()}
    with run.rest.at(run.mask) as (small, _):
        own = sum(p.numel() * p.element_size() for p in small.parameters() if id(p) not in whole)
    probe = ActivationCache(2**40, graphs=True)
    largest = max(range(len(data)), key=lambda n: data[n]["input_ids"].numel())
    one = Batches([data[largest]], cache=probe)
    criteria.load("gnorm")(model, sites(model, "heads"), one)
    print(
        json.dumps(
            {
                "extra": peak_ - before,
                "cut": own,
                "batch": probe.used,
                "kept": data.cache.used,
            }
        )
    )


def resident(name: str) -> int:
    """Bytes of this process in memory, now or at its peak."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name))
    return int(line.split()[1]) * 1024


def memory() -> Iterator[dict[str, Any]]:
    for cache in (0.0, 1.0):
        out = subprocess.run(
            [sys.executable, __file__, "--memory", str(cache)],
            capture_output=True,
            text=True,
            check=True,
        )
        told_ = json.loads(out.stdout)
        mib = {name: f"{value / 2**20:.0f}" for name, value in told_.items()}
        yield {
            "cache, GiB": cache,
            "MiB above the loaded model, at the peak": mib["extra"],
            "largest batch": mib["batch"],
            "kept in the cache": mib["kept"],
            "cut weights, beside the whole ones": mib["cut"],
        }


def growth() -> Iterator[dict[str, Any]]:
    """Seconds of one scoring as one thing grows and the rest stays."""

    def scoring(layers: int = 6, heads: int = 6, n: int = 64) -> float:
        config = transformers.BertConfig(
            hidden_size=64 * heads, num_attention_heads=heads, num_hidden_layers=layers,
            intermediate_size=1536, num_labels=3,
        )  # fmt: skip
        shape = Shape("", lambda: config, n, 32, 1)
        rows, labels = text(shape)
        run = Greedy(model_of(shape), make_batches(rows, Padding(0), labels), cache=0)
        run.look()
        return min(seconds(run.look) for _ in range(3))

    for name, values in (("n", (32, 64, 128, 256)), ("layers", (3, 6, 12, 24))):
        times = [scoring(**{name: value}) for value in values]
        yield {
            "one scoring, as this grows": {"n": "sentences", "layers": "layers"}[name],
            **{f"{i + 1}": f"{v}: {t:.2f} s" for i, (v, t) in enumerate(zip(values, times))},
            "for twice as much": f"{(times[-1] / times[0]) ** (1 / 3):.2f} times",
        }
    # a head more is a step more: the whole run grows with the number of steps
    model = model_of(SHAPES["bert"])
    rows, labels = text(SHAPES["bert"], 16)
    run = Greedy(model, make_batches(rows, Padding(0), labels), cache=0)
    run.step()
    each = []
    for _ in range(4):
        each.append(seconds(lambda: [run.step() for _ in range(6)]))
    yield {
        "one scoring, as this grows": "steps (heads)",
        **{f"{i + 1}": f"{6 * (i + 1)}: {sum(each[: i + 1]):.2f} s" for i in range(4)},
        "for twice as much": f"{(sum(each) / each[0]) ** 0.5:.2f} times",
    }


def measured_before() -> dict[str, str]:
    """The sections of the file as it is, by their headings: a part may be measured again alone."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    return {page.splitlines()[0]: page for page in re.split(r"^(?=## )", text, flags=re.M)[1:]}


HEAD = """# A greedy run: processes, memory, growth

`python benchmarks/greedy_scaling.py [processes] [memory] [growth]` · BERT-base shape · 128 sentences · one
thread each
"""
PARTS = {
    "processes": lambda: show("Two processes", [{"times faster than one": two_processes()}]),
    "memory": lambda: show("Memory of a run", list(memory())),
    "growth": lambda: show("How time grows", list(growth())),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all, if none is named")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--memory", type=float, default=None, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.worker:
        worker()
    elif asked.memory is not None:
        memory_worker(asked.memory)
    else:
        sections = measured_before()
        for part in asked.parts or PARTS:
            page = PARTS[part]()
            sections[page.splitlines()[0]] = page
        RESULTS.write_text("\n".join([HEAD, *sections.values()]), encoding="utf-8")


if __name__ == "__main__":
    main()
