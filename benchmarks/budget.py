"""Heads and neurons within a budget of MACs, without training: the default beside published methods.

    python benchmarks/budget.py MODEL TASK [--name NAME] [--seeds 0,1,2] [--shares 0.75,0.5,0.33,0.25,0.15]
                                [--contenders ours,kwon,kwon:diagonal,…] [--test 5000]

One thread. Every result is a line of results/budget/NAME.jsonl, and what is there is not computed again; the
tables NAME.md and NAME.json are written from it (`--shares ""` only writes). Seconds are processor seconds.
Calibration and test share no example, and all contenders are tested on the same ones.

ours     what `espalier prune MODEL --task TASK --macs SHARE` does
kwon …   `--recipe kwon`, kcm and kprune likewise; kcm removes neurons only and cannot reach every share
kwon:diagonal   the same without rearranging
taylor   scored again after every stage, heads and neurons together, not repaired
gnorm    heads by gnorm, scored again after every stage; neurons by taylor, scored once; both in proportion to
         the budget, as gnorm scores heads only; not repaired
random   heads and neurons at random, both in proportion, not repaired
CRITERION:REPAIR   any other, as fisher:refit or obs:none
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

from espalier import Mask, cut
from espalier.analysis.bootstrap import change_draws
from espalier.evaluation.cost import cost
from espalier.evaluation.predictions import Predictions
from espalier.experiment.budget import Budget
from espalier.experiment.budget_request import BUDGET_METHOD
from espalier.experiment.method import parse_method
from espalier.experiment.prune_budget import BudgetOptions, BudgetRun
from espalier.experiment.session import open_session
from espalier.pruning.path import BudgetPath
from espalier.reproductions import budget_recipe

RESULTS = Path(__file__).parent / "results/budget"
IN_PROPORTION = {"gnorm": ("gnorm", "taylor:static"), "random": ("random", "random")}
SHARES = "0.75,0.5,0.33,0.25,0.15"
UNPRUNED: dict[int, Predictions] = {}  # of each seed, which draws the test examples
CONTENDERS = "ours,kwon,kwon:diagonal,kcm,kprune,taylor,gnorm,random"


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("model")
    ask.add_argument("task")
    ask.add_argument("--name")
    ask.add_argument("--seeds", default="0")
    ask.add_argument("--shares", default=SHARES)
    ask.add_argument("--contenders", default=CONTENDERS)
    ask.add_argument("--calibration", type=int, help="default: 256, or as the recipe says")
    ask.add_argument("--test", type=int, default=5000)
    ask.add_argument("--max-length", type=int, default=128)
    given = ask.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("espalier").setLevel(logging.ERROR)
    name = given.name or f"{Path(given.model).name}-{Path(given.task).name}"
    RESULTS.mkdir(parents=True, exist_ok=True)
    log = RESULTS / f"{name}.jsonl"
    rows = read(log)
    shares = [float(share) for share in given.shares.split(",") if share]
    for contender in given.contenders.split(","):
        for seed in map(int, given.seeds.split(",")):
            done = {key_of(row) for row in rows if "right" in row}
            todo = [share for share in shares if (contender, seed, share) not in done]
            if todo:
                run(given, seed, contender, todo, rows, log)
    write(name, read(log))


def key_of(row):
    return row["contender"], row["seed"], row["share"]


def read(log: Path) -> list[dict]:
    """Return the last row of each contender, seed and share; those of earlier forms have no answers."""
    lines = log.read_text().splitlines() if log.exists() else []
    return list({key_of(row): row for row in map(json.loads, lines)}.values())


def options_of(contender: str) -> tuple[str, dict]:
    """Return the method of a contender and the options of its budget."""
    if contender == "ours":
        return BUDGET_METHOD, {}
    recipe, _, diagonal = contender.partition(":")
    if recipe in budget_recipe.names():
        found = budget_recipe.load(recipe).keywords() | ({"rearrange": False} if diagonal else {})
        return found.pop("method"), found
    criterion, _, repair = contender.partition(":")
    return criterion, {"repair": repair or "none"}


def in_proportion(session, contender: str, share: float) -> Mask:
    """Return a mask that keeps the same share of the heads and of the neurons, each by its own method."""
    mask = Mask()
    for target, label in zip(("heads", "neurons"), IN_PROPORTION[contender]):
        found = [site for site in session.sites if site.target == target]
        method = parse_method(label, target)
        method = method.for_trial(None if method.trials is None else 0, session.seed)

        def score(small, kept, method=method):
            return method.loaded(small, kept, session.calibration, **method.options)

        costs = {site.name: float(site.macs_per_unit(128)) for site in found}
        stage = {} if method.rescore else {"stage": 0.0}
        path = BudgetPath(session.model, found, score, costs, multiple=1, least_heads=0.0, **stage)
        mask.update(path.mask(share * path.whole))
    return mask


def run(given, seed, contender, todo, rows, log):
    label, options = options_of(contender)
    published = options.pop("calibration", 256)
    calibration = given.calibration or published
    session = open_session(
        given.model,
        given.task,
        target=options.pop("target", "heads,neurons"),
        calibration=calibration,
        test=given.test,
        max_length=given.max_length,
        seed=seed,
        cache=0.0,
    )
    if contender not in IN_PROPORTION:
        engine = BudgetRun(session, parse_method(label, "neurons"), BudgetOptions(**options))
        currency = engine.currency("macs")
        path = engine.path(currency)
    if seed not in UNPRUNED:
        UNPRUNED[seed] = session.predict(session.model, "test")
    dense = UNPRUNED[seed]
    truth, whole, seconds = session.truth("test"), cost(session.model).macs, 0.0
    for share in todo:
        start = time.process_time()
        if contender not in IN_PROPORTION and share * currency.whole <= currency.fixed:
            print(contender, share, "cannot be reached", flush=True)
            continue
        if contender in IN_PROPORTION:
            mask = in_proportion(session, contender, share)
            small = cut(copy.deepcopy(session.model), mask, report=False)
            seconds, repairing, unrepaired = time.process_time() - start, 0.0, None
        else:
            made = engine.counted(path, currency, Budget("macs", share))
            mask, small = made.mask, made.model
            # of all scoring so far: what this budget alone would take; a search by sublayers begins anew, but
            # for its first scoring, which the first share of a run has alone
            seconds = time.process_time() - start + (seconds if isinstance(path, BudgetPath) else 0.0)
            unrepaired = session.score(small, "test")
            start = time.process_time()
            engine.repair(small)
            repairing = time.process_time() - start
        assert cost(small).macs <= share * whole * (1 + 1e-9)
        predictions = session.predict(small, "test")
        draws = change_draws(session.task.metric, truth, dense.values, predictions.values)
        row = {
            "contender": contender,
            "seed": seed,
            "share": share,
            "calibration": session.calibration.examples,
            "choosing": round(seconds, 1),
            "repairing": round(repairing, 1),
            "kept": {name: int(m.sum()) for name, m in mask.items()},
            "n": len(truth),
            "dense": session.metrics(dense, "test")[session.task.metric],
            "as cut": unrepaired,
            "test": session.metrics(predictions, "test")[session.task.metric],
            "low": float(np.quantile(draws, 0.025)),
            "high": float(np.quantile(draws, 0.975)),
            "right": np.packbits(predictions.values == truth).tobytes().hex(),
        }
        rows.append(row)
        with log.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(contender, seed, share, f"{row['test']:.4f}", row["choosing"], row["repairing"], flush=True)


def right_of(row) -> np.ndarray:
    return np.unpackbits(np.frombuffer(bytes.fromhex(row["right"]), np.uint8))[: row["n"]].astype(float)


def against_ours(same, ours) -> tuple[float, float, float] | None:
    """Return test accuracy less that of ours on the seeds that both have, with its paired interval."""
    both = [(row, other) for row in same for other in ours if row["seed"] == other["seed"]]
    both = [pair for pair in both if all("right" in row for row in pair)]
    if not both:
        return None
    gap = np.mean([right_of(row) - right_of(other) for row, other in both], axis=0)
    draw = np.random.default_rng(0).integers(0, len(gap), (2000, len(gap)))
    return float(gap.mean()), *map(float, np.quantile(gap[draw].mean(1), [0.025, 0.975]))


def write(name, rows):
    """Write the table of all rows, means over calibration seeds."""
    groups: dict[tuple, list] = {}
    for row in rows:
        groups.setdefault((row["contender"], row["share"]), []).append(row)
    order = [one for one in CONTENDERS.split(",") if any(one == key[0] for key in groups)]
    order += sorted({key[0] for key in groups} - set(order))
    table = []
    for contender, share in sorted(groups, key=lambda key: (-key[1], order.index(key[0]))):
        same = groups[contender, share]
        table.append(
            {
                "block MACs": share,
                "contender": contender,
                "seeds": len(same),
                "as cut": mean_of_known(row.get("as cut") for row in same),
                "test": mean(row["test"] for row in same),
                "change": mean(row["test"] - row["dense"] for row in same),
                "interval": [mean(row["low"] for row in same), mean(row["high"] for row in same)],
                "less ours": against_ours(same, groups.get(("ours", share), []))
                if contender != "ours"
                else None,
                "choosing s": mean(row["choosing"] for row in same),
                "repairing s": mean(row["repairing"] for row in same),
            }
        )
    (RESULTS / f"{name}.json").write_text(json.dumps(table, indent=1) + "\n")
    dense = mean(row["dense"] for row in rows)
    lines = [
        f"# {name}",
        "",
        f"{rows[0]['n']} test examples, unpruned {100 * dense:.2f} %. No training. Changes in points "
        "with paired 95 % intervals over test examples, means over calibration seeds. `less ours` is on the "
        "seeds that both have. Processor seconds of one thread on a busy machine.",
        "",
        "| " + " | ".join(table[0]) + " |",
        "|" + "---|" * len(table[0]),
    ]
    for row in table:
        cells = dict(row)
        cells["as cut"] = "" if row["as cut"] is None else f"{100 * row['as cut']:.2f}"
        cells["test"] = f"{100 * row['test']:.2f}"
        cells["change"] = f"{100 * row['change']:+.2f}"
        cells["interval"] = "{:+.2f} to {:+.2f}".format(*(100 * x for x in row["interval"]))
        gap = row["less ours"]
        cells["less ours"] = "{:+.2f} ({:+.2f} to {:+.2f})".format(*(100 * x for x in gap)) if gap else ""
        cells |= {key: f"{row[key]:.0f}" for key in row if key.endswith(" s")}
        lines.append("| " + " | ".join(map(str, cells.values())) + " |")
    (RESULTS / f"{name}.md").write_text("\n".join(lines) + "\n")


def mean(values):
    return float(np.mean(list(values)))


def mean_of_known(values) -> float | None:
    """Return the mean of all values; None if one of them is."""
    found = list(values)
    return None if None in found else mean(found)


if __name__ == "__main__":
    main()
