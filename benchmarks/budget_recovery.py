"""Accuracy against MACs, before and after one epoch of recovery: budgets, fewer layers, a small model.

    python benchmarks/budget_recovery.py MODEL TASK WORK [--shares 0.5,0.33,0.25,0.1] [--layers 3,2,1]
                                         [--small MODEL …] [--rounds 0.5,0.25,0.1]
                                         [--ways distill,finetune,blockwise]
                                         [--examples 10000] [--lr 1e-4] [--seeds 0]

Budgets as `espalier prune --macs`; layers evenly spread over the model, as sentence-transformers keeps them;
`--small` models are tuned already. Each is recovered by `espalier recover` for one epoch, by distilling
MODEL, by training on the labels and sublayer by sublayer. `--rounds` prunes what the round before left after
its epoch, which is blockwise. A way may name its batch size and highest learning rate: blockwise:8:2e-4;
else they are 32 and `--lr`. WORK keeps the models. Every result is a line of
results/budget/NAME.jsonl, and what is there is not computed again; the table is NAME.md, the figure
docs/figures/NAME.png.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

import numpy as np
import torch
from budget import mean, right_of
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import espalier
from espalier.evaluation.cost import cost
from espalier.experiment.session import open_session

HERE = Path(__file__).parent
RESULTS, FIGURES = HERE / "results/budget", HERE.parent / "docs/figures"
KINDS = {
    "ours": "heads and neurons",
    "rounds": "heads and neurons in rounds",
    "layers": "fewer layers",
    "small": "tuned small model",
}
WAYS = {"none": "", "distill": "distilled", "finetune": "fine-tuned", "blockwise": "blockwise"}


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("model")
    ask.add_argument("task")
    ask.add_argument("work", type=Path)
    ask.add_argument("--shares", default="0.5,0.33,0.25,0.1")
    ask.add_argument("--layers", default="3,2,1")
    ask.add_argument("--small", nargs="*", default=[])
    ask.add_argument("--rounds", default="")
    ask.add_argument("--ways", default="distill,finetune,blockwise")
    ask.add_argument("--examples", type=int, default=10_000)
    ask.add_argument("--lr", type=float, default=1e-4)
    ask.add_argument("--seeds", default="0")
    ask.add_argument("--precision", default="fp32")
    ask.add_argument("--name")
    given = ask.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("espalier").setLevel(logging.ERROR)
    name = given.name or f"{Path(given.model).name}-recovery"
    RESULTS.mkdir(parents=True, exist_ok=True)
    log = RESULTS / f"{name}.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def known(*key):
        return any((r["kind"], r["size"], r["way"], r["seed"]) == key for r in rows)

    def add(kind, size, way, seed, folder):
        if known(kind, size, way, seed):
            return
        rows.append({"kind": kind, "size": size, "way": way, "seed": seed, **measured(folder, given.task)})
        with log.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print({key: value for key, value in rows[-1].items() if key != "right"}, flush=True)

    def recover(start, out, label, seed):
        way, batch_size, lr = parts_of(label, given.lr)
        teacher = {} if way == "finetune" else {"teacher": given.model}
        how = dict(way=way, epochs=1, batch_size=batch_size, examples=given.examples, lr=lr, overwrite=True)
        espalier.recover(start, given.task, out, seed=seed, precision=given.precision, **how, **teacher)

    add("unpruned", "1", "none", 0, given.model)
    made = [("ours", share) for share in given.shares.split(",") if share]
    made += [("layers", count) for count in given.layers.split(",") if count]
    made += [("small", one) for one in given.small]
    for seed in map(int, given.seeds.split(",")):
        for kind, size in made:
            label = Path(size).name
            start = given.work / f"{kind}-{label}-{seed}" if kind != "small" else Path(size)
            if kind == "ours" and not start.exists():
                espalier.prune(given.model, given.task, macs=float(size), folder=start, seed=seed)
            if kind == "layers" and not start.exists():
                keep_layers(given.model, int(size), start)
            add(kind, label, "none", seed, start)
            for way in filter(None, given.ways.split(",")):
                if known(kind, label, way, seed) or (kind != "ours" and way.startswith("blockwise")):
                    continue
                out = given.work / f"{kind}-{label}-{seed}-{way}"
                recover(start, out, way, seed)
                add(kind, label, way, seed, out)
        last, left = given.model, 1.0
        for size in filter(None, given.rounds.split(",")):
            start, out = (given.work / f"rounds-{size}-{seed}{end}" for end in ("", "-blockwise"))
            if not start.exists():
                espalier.prune(last, given.task, macs=float(size) / left, folder=start, seed=seed)
            add("rounds", size, "none", seed, start)
            if not known("rounds", size, "blockwise", seed):
                recover(start, out, "blockwise", seed)
            add("rounds", size, "blockwise", seed, out)
            last, left = out, float(size)
    write(name, rows, given)
    draw(name, rows)


def parts_of(label: str, lr: float) -> tuple[str, int, float]:
    """Return the way, batch size and learning rate that a label such as blockwise:8:2e-4 names."""
    way, _, rest = label.partition(":")
    size, _, named = rest.partition(":")
    return way, int(size or 32), float(named or lr)


def described(label: str) -> str:
    way, _, rest = label.partition(":")
    size, _, lr = rest.partition(":")
    return WAYS[way] + (f", batches of {size}, {lr}" if rest else "")


def measured(folder, task) -> dict:
    """Return the MACs of a model and what it answers on the test examples."""
    session = open_session(str(folder), task, calibration=1, cache=0.0)
    found, truth = session.predict(session.model, "test"), session.truth("test")
    metric = session.task.metric
    return {
        "macs": cost(session.model).macs,
        "metric": metric,
        "test": session.metrics(found, "test")[metric],
        "n": len(truth),
        "right": np.packbits(found.values == truth).tobytes().hex(),
    }


def keep_layers(model: str, count: int, folder: Path) -> None:
    """Save a model of `count` of its layers, evenly spread."""
    whole = AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32)
    layers = whole.base_model.encoder.layer
    kept = [round(i * len(layers) / count) for i in range(count)]
    whole.base_model.encoder.layer = nn.ModuleList([layers[i] for i in kept])
    whole.config.num_hidden_layers = count
    whole.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)


def grouped(rows) -> dict[tuple, list]:
    """Return the rows of all seeds of one kind, size and way."""
    groups: dict[tuple, list] = {}
    for row in rows:
        groups.setdefault((row["kind"], row["size"], row["way"]), []).append(row)
    return groups


def write(name, rows, given):
    whole = next(row for row in rows if row["kind"] == "unpruned")
    lines = [
        f"# {name}",
        "",
        f"{whole['n']} test examples, unpruned {100 * whole['test']:.2f} %. One epoch of at most "
        f"{given.examples:,} examples, batches of 32, highest learning rate {given.lr:g}, {given.precision}, "
        "unless said otherwise. Changes in points with paired 95 % intervals over test examples, means over "
        "seeds.",
        "",
        "| model | block MACs | recovered | seeds | test | change | interval |",
        "|---|---|---|---|---|---|---|",
    ]
    groups = {key: same for key, same in grouped(rows).items() if key[0] != "unpruned"}

    def place(group):
        (kind, _, way), same = group
        return list(KINDS).index(kind), -same[0]["macs"], list(WAYS).index(way.partition(":")[0]), way

    for (kind, size, way), same in sorted(groups.items(), key=place):
        gap = np.mean([right_of(row) - right_of(whole) for row in same], axis=0)
        draws = gap[np.random.default_rng(0).integers(0, len(gap), (2000, len(gap)))].mean(1)
        low, high = 100 * np.quantile(draws, [0.025, 0.975])
        label = {"layers": f"{size} of the layers", "small": size}.get(kind, KINDS[kind])
        macs = mean(row["macs"] for row in same) / whole["macs"]
        test = mean(row["test"] for row in same)
        lines.append(
            f"| {label} | {macs:.1%} | {described(way) or 'no'} | {len(same)} | {100 * test:.2f} | "
            f"{100 * gap.mean():+.2f} | {low:+.2f} to {high:+.2f} |"
        )
    (RESULTS / f"{name}.md").write_text("\n".join(lines) + "\n")


def draw(name, rows):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    whole = next(row for row in rows if row["kind"] == "unpruned")
    figure, axes = plt.subplots(figsize=(9, 4.2), layout="constrained")
    styles = {"ours": ("#0072B2", "o"), "layers": ("#D55E00", "s"), "small": ("#009E73", "^")}
    styles["rounds"] = ("#CC79A7", "D")
    lines = {"none": ":", "distill": "-", "finetune": "--", "blockwise": "-."}
    lines |= {row["way"]: (0, (6, 1)) for row in rows if ":" in row["way"]}
    groups = grouped(rows)
    for kind, (colour, marker) in styles.items():
        for way, line in lines.items():
            found = [same for key, same in groups.items() if (key[0], key[2]) == (kind, way)]
            if (kind, way) == ("layers", "none"):  # at chance, far below
                continue
            points = sorted((mean(r["macs"] for r in same), mean(r["test"] for r in same)) for same in found)
            if points:
                x, y = zip(*((100 * macs / whole["macs"], 100 * test) for macs, test in points))
                label = ", ".join(filter(None, (KINDS[kind], described(way))))
                axes.plot(x, y, linestyle=line, color=colour, marker=marker, markersize=4, label=label)
    axes.axhline(100 * whole["test"], color="grey", lw=0.8, label="unpruned")
    axes.set(xlabel="block MACs kept, %", ylabel=f"test {whole['metric']}, %")
    figure.legend(loc="outside right center", fontsize=8, handlelength=4)
    FIGURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURES / f"{name}.png", dpi=130)


if __name__ == "__main__":
    main()
