"""How the cost of choosing and repairing grows with layers, width and examples, on random models.

    python benchmarks/budget_growth.py

BERT with heads of 32 channels and four neurons for each channel, texts of 32 tokens, half of the MACs, the
default score, and a repair that reads four times the examples. Processor seconds of one thread, and by how
much the process grew at its peak; each shape runs in a process of its own. Writes results/budget/growth.md.
"""

from __future__ import annotations

import copy
import multiprocessing
import resource
import time
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

from espalier import Batches, criteria, cut, repair, sites
from espalier.experiment.budget_request import BUDGET_METHOD
from espalier.experiment.repair import MORE
from espalier.pruning.path import BudgetPath

FILE = Path(__file__).parent / "results/budget/growth.md"
USUAL = {"layers": 4, "width": 128, "examples": 64}
VARIED = {"layers": (2, 4, 8), "width": (64, 128, 256), "examples": (32, 64, 128)}
TOKENS = 32


def measure(layers: int, width: int, examples: int) -> tuple[float, float, float]:
    """Return the seconds of choosing and of repairing, and MiB."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = dict(hidden_size=width, num_attention_heads=width // 32, intermediate_size=4 * width)
    model = BertForSequenceClassification(
        BertConfig(num_hidden_layers=layers, vocab_size=1000, **shape)
    ).eval()
    ids = torch.randint(5, 1000, (MORE * examples, TOKENS))
    labels = torch.arange(len(ids)) % 2
    parts = zip(ids.split(16), labels.split(16))
    every = [{"input_ids": x, "attention_mask": torch.ones_like(x), "labels": y} for x, y in parts]
    data = Batches(every[: examples // 16])
    score = criteria.load(BUDGET_METHOD)
    found = sites(model)
    costs = {site.name: float(site.macs_per_unit(128)) for site in found}
    before, start = peak(), time.process_time()
    path = BudgetPath(model, found, lambda small, kept: score(small, kept, data), costs)
    small = cut(copy.deepcopy(model), path.mask(0.5 * path.whole), report=False)
    middle = time.process_time()
    repair(small, model, Batches(every))
    return middle - start, time.process_time() - middle, peak() - before


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    lines = [
        "# How the cost of choosing and repairing grows",
        "",
        "`python benchmarks/budget_growth.py`: random BERT, half of the MACs, 32 tokens a text, one "
        f"thread; a repair reads {MORE} times the examples.",
        "",
        "| layers | width | examples | choosing s | repairing s | MiB more |",
        "|---|---|---|---|---|---|",
    ]
    shapes = [USUAL | {name: value} for name, values in VARIED.items() for value in values]
    for shape in [one for i, one in enumerate(shapes) if one not in shapes[:i]]:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            choosing, repairing, memory = pool.apply(measure, kwds=shape)
        cells = (*shape.values(), f"{choosing:.1f}", f"{repairing:.1f}", f"{memory:.0f}")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
        print(lines[-1], flush=True)
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
