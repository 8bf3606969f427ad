"""The time of one scoring by kind of operation.

python benchmarks/greedy_profile.py            BERT-base shape, 128 sentences, one thread
python benchmarks/greedy_profile.py --quick    a tiny model, in seconds
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import torch
from greedy_run import QUICK, SHAPES, Greedy, Padding, model_of, show, text

from espalier.tasks.batches import make_batches

KINDS = {
    "products of matrices": ("mm", "bmm", "linear", "baddbmm"),
    "attention": ("scaled_dot_product", "softmax"),
    "activation (GELU)": ("gelu",),
    "layer norm": ("layer_norm",),
    "adding, multiplying, copying": (
        *("add", "mul", "copy_", "div", "sum", "fill", "zero", "index", "clone", "sub", "cat"),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny model, in seconds")
    shape = QUICK if parser.parse_args().quick else SHAPES["bert"]
    torch.set_num_threads(1)
    rows, labels = text(shape)
    run = Greedy(model_of(shape), make_batches(rows, Padding(0), labels), cache=0)
    run.score()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        run.score()
    spent: dict[str, float] = defaultdict(float)
    for event in profile.key_averages():
        name = event.key.removeprefix("aten::")
        kind = next((k for k, words in KINDS.items() if any(word in name for word in words)), "the rest")
        spent[kind] += event.self_cpu_time_total / 1e6
    total = sum(spent.values())
    order = sorted(spent.items(), key=lambda item: -item[1])
    show(
        "One scoring, by kind of operation",
        [{"": kind, "seconds": time, "share": f"{time / total:.1%}"} for kind, time in order],
    )


if __name__ == "__main__":
    main()
