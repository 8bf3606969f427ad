"""Accuracy against MACs, before and after one epoch of recovery: budgets, fewer layers, a small model.

    python benchmarks/budget_recovery.py MODEL TASK WORK [--shares 0.5,0.33,0.25,0.1] [--layers 3,2,1]
                                         [--small MODEL …] [--ways distill,finetune] [--examples 10000]

Budgets as `espalier prune --macs`; layers evenly spread over the model, as sentence-transformers keeps them;
`--small` models are tuned already. Each is recovered by `espalier recover` for one epoch, by distilling MODEL
and by training on the labels. WORK keeps the models. Every result is a line of results/budget/NAME.jsonl, and
what is there is not computed again; the figure goes to docs/figures/NAME.png.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import espalier

HERE = Path(__file__).parent
RESULTS, FIGURES = HERE / "results/budget", HERE.parent / "docs/figures"


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("model")
    ask.add_argument("task")
    ask.add_argument("work", type=Path)
    ask.add_argument("--shares", default="0.5,0.33,0.25,0.1")
    ask.add_argument("--layers", default="3,2,1")
    ask.add_argument("--small", nargs="*", default=[])
    ask.add_argument("--ways", default="distill,finetune")
    ask.add_argument("--examples", type=int, default=10_000)
    ask.add_argument("--lr", type=float, default=1e-4)
    ask.add_argument("--name")
    given = ask.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("espalier").setLevel(logging.ERROR)
    name = given.name or f"{Path(given.model).name}-recovery"
    RESULTS.mkdir(parents=True, exist_ok=True)
    log = RESULTS / f"{name}.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def known(kind, size, way):
        return any((r["kind"], r["size"], r["way"]) == (kind, size, way) for r in rows)

    def add(kind, size, way, folder):
        if known(kind, size, way):
            return
        found = espalier.evaluate(folder, given.task)
        metric = found["test"]["metric"]
        row = {"kind": kind, "size": size, "way": way, "macs": found["macs"], "metric": metric}
        rows.append({**row, "test": found["test"][metric]})
        with log.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print(rows[-1], flush=True)

    add("unpruned", 1.0, "none", given.model)
    made = [("ours", float(share)) for share in given.shares.split(",") if share]
    made += [("layers", int(count)) for count in given.layers.split(",") if count]
    made += [("small", one) for one in given.small]
    for kind, size in made:
        start = given.work / f"{kind}-{Path(str(size)).name}" if kind != "small" else Path(size)
        if kind == "ours" and not start.exists():
            espalier.prune(given.model, given.task, macs=size, folder=start)
        if kind == "layers" and not start.exists():
            keep_layers(given.model, size, start)
        add(kind, size, "none", start)
        for way in filter(None, given.ways.split(",")):
            if known(kind, size, way):
                continue
            out = given.work / f"{start.name}-{way}"
            teacher = {"teacher": given.model} if way == "distill" else {}
            how = dict(way=way, epochs=1, examples=given.examples, lr=given.lr, overwrite=True, **teacher)
            espalier.recover(start, given.task, out, **how)
            add(kind, size, way, out)
    draw(name, rows)


def keep_layers(model: str, count: int, folder: Path) -> None:
    """Save a model of `count` of its layers, evenly spread."""
    whole = AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32)
    layers = whole.base_model.encoder.layer
    kept = [round(i * len(layers) / count) for i in range(count)]
    whole.base_model.encoder.layer = nn.ModuleList([layers[i] for i in kept])
    whole.config.num_hidden_layers = count
    whole.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)


def draw(name, rows):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    whole = next(row for row in rows if row["kind"] == "unpruned")
    figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    styles = {"ours": ("#0072B2", "o"), "layers": ("#D55E00", "s"), "small": ("#009E73", "^")}
    names = {"ours": "heads and neurons", "layers": "fewer layers", "small": "tuned small model"}
    lines = {"none": ":", "distill": "-", "finetune": "--"}
    after = {"none": "", "distill": ", distilled", "finetune": ", fine-tuned"}
    for kind, (colour, marker) in styles.items():
        for way, line in lines.items():
            same = sorted((r["macs"], r["test"]) for r in rows if (r["kind"], r["way"]) == (kind, way))
            if same:
                x, y = zip(*((100 * macs / whole["macs"], 100 * test) for macs, test in same))
                axes.plot(x, y, line, color=colour, marker=marker, label=names[kind] + after[way])
    axes.axhline(100 * whole["test"], color="grey", lw=0.8, label="unpruned")
    axes.set(xlabel="block MACs kept, %", ylabel=f"test {whole['metric']}, %")
    axes.legend(fontsize=8)
    FIGURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURES / f"{name}.png", dpi=130)


if __name__ == "__main__":
    main()
