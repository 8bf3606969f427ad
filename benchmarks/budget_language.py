"""A language model with fewer key-value groups and neurons: perplexity as cut and repaired, without training.

    python benchmarks/budget_language.py MODEL TEXT [--removed 0.2,0.1,0.3,0.5]
                                         [--methods obs,energy,magnitude,random]
                                         [--calibration 8] [--test 40] [--max-length 512]

`removed` is the share of the parameters of heads and neurons; calibration and test count blocks of tokens.
`random` is in proportion, the others on one scale of score per parameter; `energy` is Wanda's score for
units. One thread. Every result is a line of results/budget/NAME.jsonl; what is there is not computed again.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import math
import time
from pathlib import Path

import torch

from espalier import Mask, cut
from espalier.experiment.method import parse_method
from espalier.experiment.session import open_session
from espalier.pruning.path import BudgetPath
from espalier.pruning.repair import repair

RESULTS = Path(__file__).parent / "results/budget"


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("model")
    ask.add_argument("text")
    ask.add_argument("--removed", default="0.2,0.1,0.3,0.5")
    ask.add_argument("--methods", default="obs,energy,magnitude,random")
    ask.add_argument("--calibration", type=int, default=8)
    ask.add_argument("--test", type=int, default=40)
    ask.add_argument("--max-length", type=int, default=512)
    ask.add_argument("--stage", type=float, default=0.7)
    given = ask.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("espalier").setLevel(logging.ERROR)
    sizes = dict(calibration=given.calibration, validation=1, test=given.test, max_length=given.max_length)
    session = open_session(given.model, given.text, target="heads,neurons", cache=0.0, **sizes)
    name = f"{Path(given.model).name}-{Path(given.text).name}"
    RESULTS.mkdir(parents=True, exist_ok=True)
    log = RESULTS / f"{name}.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def add(**row):
        rows.append({**row, **sizes})
        with log.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print(row, flush=True)

    if not rows:
        add(method="dense", removed=0.0, repair="none", perplexity=perplexity(session, session.model))
    for removed in map(float, filter(None, given.removed.split(","))):
        for method in given.methods.split(","):
            if sum((r["method"], r["removed"]) == (method, removed) for r in rows) < 2:
                compare(session, method, removed, given.stage, add)
    write(name, rows)


def compare(session, label, removed, stage, add):
    start = time.process_time()
    mask = choose(session, label, 1 - removed, stage)
    small = cut(copy.deepcopy(session.model), mask, report=False)
    choosing = round(time.process_time() - start, 1)
    add(method=label, removed=removed, repair="none", perplexity=perplexity(session, small), seconds=choosing)
    start = time.process_time()
    repair(small, session.model, session.calibration)
    seconds = round(time.process_time() - start, 1)
    add(method=label, removed=removed, repair="refit", perplexity=perplexity(session, small), seconds=seconds)


def choose(session, label, share, stage) -> Mask:
    method = parse_method(label, "heads")
    method = method.for_trial(None if method.trials is None else 0, session.seed)

    def score(small, kept):
        return method.loaded(small, kept, session.calibration, **method.options)

    mask = Mask()
    for targets in (("heads",), ("neurons",)) if label == "random" else (("heads", "neurons"),):
        found = [site for site in session.sites if site.target in targets]
        costs = {site.name: float(site.parameters_per_unit()) for site in found}
        path = BudgetPath(session.model, found, score, costs, stage=stage if method.rescore else 0.0)
        mask.update(path.mask(share * path.whole))
    return mask


def perplexity(session, model) -> float:
    return float(session.metrics(session.predict(model, "test"), "test")["perplexity"])


def write(name, rows):
    dense = rows[0]["perplexity"]
    lines = [
        f"# {name}",
        "",
        f"{rows[0]['test']} blocks of {rows[0]['max_length']} test tokens, {rows[0]['calibration']} of "
        f"calibration; perplexity, unpruned {dense:.2f}. `undone` is the share of the increase of its "
        "logarithm that the repair undoes.",
        "",
        "| parameters of units removed | method | as cut | repaired | undone | choosing s | repairing s |",
        "|---|---|---|---|---|---|---|",
    ]
    pairs: dict[tuple, dict] = {}
    for row in rows[1:]:
        pairs.setdefault((row["removed"], row["method"]), {})[row["repair"]] = row
    for (removed, method), both in sorted(pairs.items()):
        if len(both) == 2:
            cut_, fitted = both["none"], both["refit"]
            rise = math.log(cut_["perplexity"] / dense)
            undone = 1 - math.log(fitted["perplexity"] / dense) / rise
            values = (f"{cut_['perplexity']:.2f}", f"{fitted['perplexity']:.2f}", f"{undone:.0%}")
            seconds = (f"{cut_['seconds']:.0f}", f"{fitted['seconds']:.0f}")
            lines.append(f"| {removed:.0%} | {method} | " + " | ".join((*values, *seconds)) + " |")
    (RESULTS / f"{name}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
