"""Where the time of one scoring goes, by kind of operation.

python benchmarks/greedy_profile.py     BERT-base shape, 64 sentences, one thread
"""

from __future__ import annotations

from collections import defaultdict

import torch
from greedy_speed import SHAPES, Greedy, Padding, model_of, show, text

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
    torch.set_num_threads(1)
    rows, labels = text(SHAPES["bert"])
    run = Greedy(model_of(SHAPES["bert"]), make_batches(rows, Padding(0), labels), cache=0)
    run.look()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        run.look()
    spent: dict[str, float] = defaultdict(float)
    for event in profile.key_averages():
        name = event.key.removeprefix("aten::")
        kind = next((k for k, words in KINDS.items() if any(w in name for w in words)), "the rest")
        spent[kind] += event.self_cpu_time_total / 1e6
    total = sum(spent.values())
    order = sorted(spent.items(), key=lambda item: -item[1])
    found = [{"": k, "seconds": v, "share": f"{v / total:.1%}"} for k, v in order]
    show("One scoring, by kind of operation", found)


if __name__ == "__main__":
    main()
