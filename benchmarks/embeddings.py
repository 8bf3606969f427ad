"""An embedding model made smaller without training: heads and neurons within a budget, or whole layers.

    python benchmarks/embeddings.py MODEL TASK [--name NAME] [--shares 0.75,0.5,0.33,0.25] [--layers 5,4,3]
                                    [--methods alternate,representation] [--calibration 256] [--test 5000]

MODEL is a folder of sentence-transformers or a bare encoder, TASK a table of pairs with scores. One thread.
Every result is a line of results/embeddings.jsonl, and what is there is not computed again; the tables
results/embeddings.md and .json are written from it (`--shares "" --layers ""` only writes). Seconds are
processor seconds. Calibration pairs are of the training split, results of the test split.

budget   what `espalier prune MODEL --task TASK --macs SHARE` does; "as cut" is it before the repair
layers   what `espalier prune MODEL --task TASK --target layers --method METHOD --remove … --repair refit`
         does, if the layers are chosen by one scoring of the unpruned model
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

from espalier import cut, remove_lowest, sites
from espalier.analysis.bootstrap import change_draws, value_interval
from espalier.evaluation.cost import cost
from espalier.evaluation.predictions import pack, unpack
from espalier.experiment.budget import Budget
from espalier.experiment.budget_request import BUDGET_METHOD
from espalier.experiment.method import parse_method
from espalier.experiment.prune_budget import BudgetOptions, BudgetRun
from espalier.experiment.repair import REFIT, repair_cut
from espalier.experiment.session import open_session

RESULTS = Path(__file__).parent / "results"
LOG = RESULTS / "embeddings.jsonl"
DENSE = "unpruned"
SHARES, LAYERS, METHODS = "0.75,0.5,0.33,0.25", "5,4,3", "alternate,representation"


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("model")
    ask.add_argument("task")
    ask.add_argument("--name")
    ask.add_argument("--shares", default=SHARES)
    ask.add_argument("--layers", default=LAYERS)
    ask.add_argument("--methods", default=METHODS)
    ask.add_argument("--calibration", type=int, default=256)
    ask.add_argument("--test", type=int, default=5000)
    ask.add_argument("--seed", type=int, default=0)
    given = ask.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("espalier").setLevel(logging.ERROR)
    shares = [float(share) for share in given.shares.split(",") if share]
    counts = [int(count) for count in given.layers.split(",") if count]
    if shares or counts:
        options = dict(
            calibration=given.calibration, test=given.test, validation=1, seed=given.seed, cache=0.0
        )
        session = open_session(given.model, given.task, target="heads,neurons", **options)
        bench = Bench(session, given.name or Path(given.model).name, given.calibration)
        bench.measure_budgets(shares)
        for method in given.methods.split(",") if counts else []:
            bench.measure_layers(method, counts)
    write(read())


def read() -> list[dict]:
    """Return the last row of each model, way and seed."""
    lines = LOG.read_text().splitlines() if LOG.exists() else []
    return list({key_of(row): row for row in map(json.loads, lines)}.values())


def key_of(row: dict) -> tuple:
    return tuple(row[name] for name in ("model", "way", "kept", "repaired", "seed", "calibration", "n"))


class Bench:
    """One model and one task: predictions of the unpruned model, and rows that were measured."""

    def __init__(self, session, name: str, calibration: int):
        self.session, self.name, self.calibration = session, name, calibration
        self.done = {key_of(row): row for row in read()}
        self.whole = cost(session.model).macs
        known = self.done.get(self.key(DENSE, "all", False))
        self.dense = None if known is None else unpack(known["predictions"])
        if known is None:
            self.dense = self.predict(DENSE, "all", False, session.model, 0.0).values

    def key(self, way: str, kept: str, repaired: bool) -> tuple:
        n = len(self.session.task.test)
        return self.name, way, kept, repaired, self.session.seed, self.calibration, n

    def todo(self, way: str, kept: str, repaired: bool) -> bool:
        return self.key(way, kept, repaired) not in self.done

    def predict(self, way: str, kept: str, repaired: bool, model, seconds: float):
        """Measure a model on the test pairs and add the row."""
        found, truth = self.session.predict(model, "test"), self.session.truth("test")
        values = self.session.metrics(found, "test")
        draws = 0.0 if self.dense is None else change_draws("spearman", truth, self.dense, found.values)
        low, high = value_interval("spearman", truth, found.values)
        row = {
            "model": self.name,
            "way": way,
            "kept": kept,
            "repaired": repaired,
            "seed": self.session.seed,
            "calibration": self.calibration,
            "n": len(truth),
            "macs": cost(model).macs / self.whole,
            "parameters": sum(p.numel() for p in model.parameters()),
            **{name: values[name] for name in ("spearman", "pearson")},
            "low": low,
            "high": high,
            "change": [float(x) for x in np.quantile(draws, [0.025, 0.975])],
            "seconds": round(seconds, 1),
            "predictions": pack(found.values, "similarity"),
        }
        if self.todo(way, kept, repaired):
            with LOG.open("a") as file:
                file.write(json.dumps(row) + "\n")
        print(way, kept, "repaired" if repaired else "as cut", f"{row['spearman']:.4f}", flush=True)
        return found

    def measure_budgets(self, shares: list[float]) -> None:
        """Cut to each share of the MACs, from one scoring; measure before and after repair."""
        engine = BudgetRun(self.session, parse_method(BUDGET_METHOD, "neurons"), BudgetOptions())
        currency = engine.currency("macs")
        path = engine.path(currency)
        for share in shares:
            if not any(self.todo("heads, neurons", f"{share:g}", repaired) for repaired in (False, True)):
                continue
            start = time.process_time()
            made = engine.counted(path, currency, Budget("macs", share))
            seconds = time.process_time() - start
            self.predict("heads, neurons", f"{share:g}", False, made.model, seconds)
            start = time.process_time()
            engine.repair(made.model)
            seconds += time.process_time() - start
            self.predict("heads, neurons", f"{share:g}", True, made.model, seconds)

    def measure_layers(self, method: str, counts: list[int]) -> None:
        """Keep so many layers by one scoring; measure before and after repair."""
        session, way = self.session, f"layers, {method}"
        found = sites(session.model, "layers")
        units = sum(site.units for site in found)
        start = time.process_time()
        chosen = parse_method(method, "layers")
        scores = chosen.loaded(session.model, found, session.calibration.uncached(), **chosen.options)
        scoring = time.process_time() - start
        for count in counts:
            kept = f"{count} of {units}"
            if not any(self.todo(way, kept, repaired) for repaired in (False, True)):
                continue
            small = cut(copy.deepcopy(session.model), remove_lowest(scores, 1 - count / units), report=False)
            self.predict(way, kept, False, small, scoring)
            start = time.process_time()
            repair_cut(session, small, REFIT)
            self.predict(way, kept, True, small, scoring + time.process_time() - start)


def write(rows: list[dict]) -> None:
    """Write the tables of all rows."""
    lines = ["# Embedding models made smaller, without training", ""]
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["n"], row["calibration"], row["seed"]), []).append(row)
    for (model, n, calibration, seed), same in groups.items():
        dense = next(row for row in same if row["way"] == DENSE)
        lines += [
            f"{model}, Spearman correlation of cosine and score, times 100, on {n:,} test pairs; "
            f"{calibration} calibration pairs, seed {seed}. Unpruned {100 * dense['spearman']:.2f} "
            f"[{100 * dense['low']:.2f}, {100 * dense['high']:.2f}], Pearson {100 * dense['pearson']:.2f}. "
            "Changes are against the unpruned model; 95 % intervals, paired over pairs of texts.",
            "",
            "| what is kept | MACs of the blocks | as cut | change | repaired | change | further seconds |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        names = list(dict.fromkeys((row["way"], row["kept"]) for row in same if row["way"] != DENSE))
        names.sort(key=lambda name: name[0])  # within a way as measured
        for way, kept in names:
            pair = {row["repaired"]: row for row in same if (row["way"], row["kept"]) == (way, kept)}
            first = next(iter(pair.values()))
            cells = [f"{way}: {kept}", f"{100 * first['macs']:.0f} %"]
            for repaired in (False, True):
                row = pair.get(repaired)
                cells += [f"{100 * row['spearman']:.2f}", _change(row, dense)] if row else ["", ""]
            seconds = max(row["seconds"] for row in pair.values())
            lines.append(f"| {' | '.join([*cells, f'{seconds:.0f}'])} |")
        lines.append("")
        if missing := missing_in(same):
            lines += [f"Not measured, repeat the command for them: {'; '.join(missing)}.", ""]
    lines += ["Written by `python benchmarks/embeddings.py MODEL TASK`; see its first lines.", ""]
    (RESULTS / "embeddings.md").write_text("\n".join(lines))
    short = [{name: value for name, value in row.items() if name != "predictions"} for row in rows]
    (RESULTS / "embeddings.json").write_text(json.dumps(short, indent=1) + "\n")


def missing_in(rows: list[dict]) -> list[str]:
    """List what the command would measure by default and the rows do not have."""
    done = {(row["way"], row["kept"].split()[0], row["repaired"]) for row in rows}
    wanted = [("heads, neurons", share) for share in SHARES.split(",")]
    wanted += [(f"layers, {method}", count) for method in METHODS.split(",") for count in LAYERS.split(",")]
    ways = {False: "as cut", True: "repaired"}
    return [
        f"{way} {kept} {name}"
        for way, kept in wanted
        for repaired, name in ways.items()
        if (way, kept, repaired) not in done
    ]


def _change(row: dict, dense: dict) -> str:
    low, high = row["change"]
    value = row["spearman"] - dense["spearman"]
    return f"{100 * value:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]".replace("-", "−")


if __name__ == "__main__":
    main()
