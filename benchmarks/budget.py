"""Heads and neurons within a budget of MACs, as cut and repaired, without training.

    python benchmarks/budget.py MODEL TASK [--seeds 0,1,2] [--shares 0.5,0.33,0.25,0.15] [--methods fisher]

One thread. Every result is a line of results/budget/NAME.jsonl, and what is there is not computed again; the
tables NAME.md and NAME.json are written from it. Seconds are processor seconds. Validation chooses between
methods, test is only reported; calibration, validation and test share no example.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import time
from pathlib import Path

import numpy as np
import torch

from espalier import cut, sites
from espalier.analysis.bootstrap import change_draws
from espalier.evaluation.cost import TOKENS
from espalier.experiment.method import parse_method
from espalier.experiment.session import open_session
from espalier.pruning.path import BudgetPath
from espalier.pruning.repair import repair

RESULTS = Path(__file__).parent / "results/budget"
REPAIRS = ("none", "refit")


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("model")
    ask.add_argument("task")
    ask.add_argument("--name")
    ask.add_argument("--seeds", default="0")
    ask.add_argument("--shares", default="0.5,0.33,0.25,0.15")
    ask.add_argument("--methods", default="fisher")
    ask.add_argument("--calibration", type=int, default=256)
    given = ask.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("espalier").setLevel(logging.ERROR)
    name = given.name or f"{Path(given.model).name}-{Path(given.task).name}"
    RESULTS.mkdir(parents=True, exist_ok=True)
    log = RESULTS / f"{name}.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    shares = [float(share) for share in given.shares.split(",")]
    for seed in map(int, given.seeds.split(",")):
        for method in given.methods.split(","):
            todo = [
                (share, how)
                for share in shares
                for how in REPAIRS
                if not any(
                    (r["seed"], r["method"], r["share"], r["repair"]) == (seed, method, share, how)
                    for r in rows
                )
            ]
            if todo:
                run(given, seed, method, todo, rows, log)
    write(name, rows)


def run(given, seed, method, todo, rows, log):
    session = open_session(
        given.model, given.task, target="heads,neurons", calibration=given.calibration, seed=seed, cache=0.0
    )
    model, found, chosen = session.model, sites(session.model), parse_method(method, "heads")
    costs = {site.name: site.macs_per_unit(TOKENS) for site in found}
    seconds = 0.0

    def score(small, kept):
        return chosen.loaded(small, kept, session.calibration, **chosen.options)

    stage = {} if chosen.rescore else {"stage": 0.0}
    path = BudgetPath(model, found, score, costs, **stage)
    dense = {split: session.predict(model, split) for split in ("validation", "test")}
    for share, how in todo:
        start = time.process_time()
        mask = path.mask(share * path.whole)
        seconds += time.process_time() - start  # of all scoring so far: what this budget alone would take
        small = cut(copy.deepcopy(model), mask, report=False)
        start = time.process_time()
        repair(small, model, session.calibration, how)
        row = {
            "seed": seed,
            "method": method,
            "share": share,
            "repair": how,
            "choosing": round(seconds, 1),
            "repairing": round(time.process_time() - start, 1),
            "kept": {name: int(m.sum()) for name, m in mask.items()},
        }
        for split in ("validation", "test"):
            predictions = session.predict(small, split)
            truth = session.truth(split)
            draws = change_draws(session.task.metric, truth, dense[split].values, predictions.values)
            row[split] = {
                "n": len(predictions.values),
                "dense": session.metrics(dense[split], split)[session.task.metric],
                "value": session.metrics(predictions, split)[session.task.metric],
                "low": float(np.quantile(draws, 0.025)),
                "high": float(np.quantile(draws, 0.975)),
                "same": float((predictions.values == dense[split].values).mean()),
            }
        rows.append(row)
        with log.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(seed, method, share, how, row["validation"]["value"], row["test"]["value"], flush=True)


def write(name, rows):
    """Write the table of all rows, means over calibration seeds."""
    groups: dict[tuple, list] = {}
    for row in rows:
        groups.setdefault((row["method"], row["share"], row["repair"]), []).append(row)
    table = []
    for (method, share, how), same in sorted(
        groups.items(), key=lambda item: (item[0][0], -item[0][1], item[0][2])
    ):
        test = [row["test"] for row in same]
        table.append(
            {
                "method": method,
                "share of block MACs": share,
                "repair": how,
                "seeds": len(same),
                "validation": mean(row["validation"]["value"] for row in same),
                "test": mean(t["value"] for t in test),
                "dense": mean(t["dense"] for t in test),
                "change": mean(t["value"] - t["dense"] for t in test),
                "low": mean(t["low"] for t in test),
                "high": mean(t["high"] for t in test),
                "choosing s": mean(row["choosing"] for row in same),
                "repairing s": mean(row["repairing"] for row in same),
            }
        )
    (RESULTS / f"{name}.json").write_text(json.dumps(table, indent=1) + "\n")
    head = list(table[0])
    lines = [
        f"# {name}",
        "",
        f"{rows[0]['test']['n']} test and {rows[0]['validation']['n']} validation examples. "
        "Percent; change in points with the mean of the paired 95 % intervals over test examples.",
        "",
    ]
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in table:
        lines.append("| " + " | ".join(cell(key, value) for key, value in row.items()) + " |")
    (RESULTS / f"{name}.md").write_text("\n".join(lines) + "\n")


def mean(values):
    return float(np.mean(list(values)))


def cell(key, value):
    if key in ("validation", "test", "dense", "change", "low", "high"):
        return f"{100 * value:+.2f}" if key in ("change", "low", "high") else f"{100 * value:.2f}"
    return f"{value:.1f}" if isinstance(value, float) and key.endswith(" s") else str(value)


if __name__ == "__main__":
    main()
