"""A language model with fewer key-value groups and neurons: perplexity as cut and repaired, without training.

    python benchmarks/budget_language.py MODEL TEXT [--removed 0.2,0.1,0.3,0.5]
                                         [--methods obs,energy,magnitude,random]
                                         [--calibration 8] [--fit 16,128] [--test 40] [--max-length 512]

`removed` is the share of the parameters of heads and neurons; calibration (to score by), fit (to repair by,
each in turn) and test count blocks of tokens.
`random` is in proportion, the others on one scale of score per parameter; `energy` is Wanda's score for
units. `obs+repair` repairs what a stage left, by as many blocks as the first `fit`, before it is scored
again; a stage leaves `--fine-stage` of the parameters.

One thread. Every result is a line of results/budget/NAME.jsonl; what is there is not computed again.
The table is NAME.md, the figure docs/figures/NAME.png.
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

HERE = Path(__file__).parent
RESULTS, FIGURES = HERE / "results/budget", HERE.parent / "docs/figures"
REPAIRED = "+repair"
COLOURS = {
    "obs+repair": "#0072B2",
    "obs": "#56B4E9",
    "energy": "#D55E00",
    "random": "grey",
    "magnitude": "#009E73",
}


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("model")
    ask.add_argument("text")
    ask.add_argument("--removed", default="0.2,0.1,0.3,0.5")
    ask.add_argument("--methods", default="obs,energy,magnitude,random")
    ask.add_argument("--calibration", type=int, default=8)
    ask.add_argument("--fit", default="16")
    ask.add_argument("--test", type=int, default=40)
    ask.add_argument("--max-length", type=int, default=512)
    ask.add_argument("--stage", type=float, default=0.7)
    ask.add_argument("--fine-stage", type=float, default=0.9)
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
        add(method="dense", removed=0.0, fit=0, perplexity=perplexity(session, session.model))
    for removed in map(float, filter(None, given.removed.split(","))):
        for method in given.methods.split(","):
            known = [r["fit"] for r in rows if (r["method"], r["removed"]) == (method, removed)]
            todo = [fit for fit in (0, *map(int, given.fit.split(","))) if fit not in known]
            if todo:
                stage = given.fine_stage if method.endswith(REPAIRED) else given.stage
                compare(session, method, removed, stage, todo, add, int(given.fit.split(",")[0]))
    write(name, rows)
    draw(name, rows)


def compare(session, label, removed, stage, todo, add, blocks):
    """Add the perplexity of a cut model as it is (0) and repaired by so many blocks."""
    start = time.process_time()
    mask = choose(session, label, 1 - removed, stage, blocks)
    choosing = round(time.process_time() - start, 1)
    for fit in todo:
        small = cut(copy.deepcopy(session.model), mask, report=False)
        start = time.process_time()
        if fit:
            repair(small, session.model, session.draw(fit))
        seconds = round(time.process_time() - start, 1) if fit else choosing
        add(method=label, removed=removed, fit=fit, perplexity=perplexity(session, small), seconds=seconds)


def choose(session, label, share, stage, blocks) -> Mask:
    data = session.draw(blocks) if label.endswith(REPAIRED) else None
    fit = None if data is None else lambda small: repair(small, session.model, data)
    method = parse_method(label.removesuffix(REPAIRED), "heads")
    method = method.for_trial(None if method.trials is None else 0, session.seed)

    def score(small, kept):
        return method.loaded(small, kept, session.calibration, **method.options)

    mask = Mask()
    for targets in (("heads",), ("neurons",)) if label == "random" else (("heads", "neurons"),):
        found = [site for site in session.sites if site.target in targets]
        costs = {site.name: float(site.parameters_per_unit()) for site in found}
        how = {"stage": stage if method.rescore else 0.0, "fit": fit}
        path = BudgetPath(session.model, found, score, costs, **how)
        mask.update(path.mask(share * path.whole))
    return mask


def perplexity(session, model) -> float:
    return float(session.metrics(session.predict(model, "test"), "test")["perplexity"])


def write(name, rows):
    dense, first = rows[0]["perplexity"], rows[0]
    lines = [
        f"# {name}",
        "",
        f"{first['test']} blocks of {first['max_length']} test tokens, {first['calibration']} to score "
        f"by; perplexity, unpruned {dense:.2f}. `undone` is the share of the increase of its logarithm that "
        "the repair undoes.",
        "",
        "| parameters of units removed | method | as cut | blocks to repair by | repaired | undone | "
        "choosing s | repairing s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    as_cut = {(row["removed"], row["method"]): row for row in rows if not row["fit"]}
    for row in sorted(
        (row for row in rows if row["fit"]), key=lambda r: (r["removed"], r["method"], r["fit"])
    ):
        cut_ = as_cut[row["removed"], row["method"]]
        undone = 1 - math.log(row["perplexity"] / dense) / math.log(cut_["perplexity"] / dense)
        cells = [f"{row['removed']:.0%}", row["method"], f"{cut_['perplexity']:.2f}", row["fit"]]
        cells += [f"{row['perplexity']:.2f}", f"{undone:.0%}"]
        cells += [f"{one['seconds']:.0f}" for one in (cut_, row)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    (RESULTS / f"{name}.md").write_text("\n".join(lines) + "\n")


def draw(name, rows):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.8, 4.2), layout="constrained")
    least = min(row["fit"] for row in rows if row["fit"])
    for method, colour in COLOURS.items():
        for fit, line in ((0, ":"), (least, "-")):
            own = [row for row in rows if (row["method"], row["fit"]) == (method, fit)]
            if len(own) < 2:  # no line
                continue
            points = sorted((row["removed"], row["perplexity"]) for row in (rows[0], *own))
            label = f"{method}, repaired" if fit else f"{method}, as cut"
            x, y = [100 * removed for removed, _ in points], [value for _, value in points]
            axes.plot(x, y, line, color=colour, marker="o", markersize=4, label=label)
    axes.set_yscale("log")
    axes.set(xlabel="parameters of heads and neurons removed, %", ylabel="test perplexity")
    axes.legend(fontsize=8)
    FIGURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURES / f"{name}.png", dpi=130)


if __name__ == "__main__":
    main()
