"""All-attention against Transformer-XL under learned head gates, on a corpus of words.

python benchmarks/all_attention.py CORPUS -o FOLDER                      all stages, in this order
python benchmarks/all_attention.py CORPUS -o FOLDER --stages train,gates
python benchmarks/all_attention.py CORPUS -o FOLDER --classifier MODEL --sentences DATA   a classifier too
python benchmarks/all_attention.py CORPUS -o FOLDER --write               tables and figure from what is there
python benchmarks/all_attention.py CORPUS -o SECOND --seed 1 --stages train,gates         another seed
python benchmarks/all_attention.py CORPUS -o FOLDER --write --more SECOND THIRD           all seeds compared

CORPUS is a folder with train, valid and test text (PTB: words between spaces, one sentence a line). Models
and results.json are in FOLDER; what is in results.json is not repeated, and a killed training resumes.
`--write` puts tables and results.json into benchmarks/results/all_attention, the figure into docs/figures.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import espalier
from espalier import tasks
from espalier.engine.hard_concrete import decide
from espalier.engine.memory import Memory
from espalier.evaluation.cost import cost
from espalier.tasks.batches import read_tokens
from espalier.tasks.task import Examples
from espalier.tasks.words import words_of
from espalier.training import Gates, train

HERE = Path(__file__).parent
RESULTS, FIGURE = HERE / "results" / "all_attention", HERE.parent / "docs" / "figures" / "gates-layers.png"
FRACTIONS = (0.25, 0.5, 0.625, 0.75)
TECHNIQUES = {
    "all three": {},
    "no warm-up": {"warmup": 0.0},
    "gates begin half open": {"init": 0.0},
    "not scaled": {"scaled": False},
    "none": {"warmup": 0.0, "init": 0.0, "scaled": False},
}
KINDS = {"all_attention": "num_slots", "transformer_xl": "intermediate_size"}
SIZES = {  # of `--size`: what is trained, and how long. `lines` of the training text are one short epoch
    "tiny": dict(width=32, layers=2, heads=4, wide=32, cutoffs=[500], epochs=1, lr=6e-3, lines=1000),
    "small": dict(width=64, layers=4, heads=4, wide=128, cutoffs=[2000], epochs=2, lr=4e-3, lines=6000),
    "full": dict(width=128, layers=3, heads=8, wide=128, cutoffs=[2000], epochs=6, lr=3e-3, lines=12000),
}


class Study:
    """The corpus, the sizes, and what is measured already."""

    def __init__(self, given: argparse.Namespace):
        self.given, self.folder = given, Path(given.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = self.folder / "results.json"
        self.found: dict[str, Any] = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.size = SIZES[given.size]
        self.task = replace(tasks.load(given.corpus), name=Path(given.corpus).name)
        self.short = replace(self.task, train=Examples(tuple(self.task.train.texts[: self.size["lines"]])))
        self.data = {"max_length": given.segment, "validation": given.segments, "test": given.segments}
        self.loop = {"epochs": 1, "batch_size": 16, "lr": self.size["lr"] / 4}

    def once(self, name: str, work: Callable[[], Any]) -> Any:
        """Return a result, computed and written if it is not there yet."""
        if name not in self.found:
            start, before = time.time(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
            self.found[name] = work()
            seconds = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
            self.found.setdefault("seconds", {})[name] = [round(seconds), round(time.time() - start)]
            place = self.file.with_suffix(".new")
            place.write_text(json.dumps(self.found, indent=1))
            place.replace(self.file)
            print(f"{name}: {seconds:.0f} seconds of the processor", flush=True)
        return self.found[name]

    def path(self, *words: object) -> Path:
        return self.folder / "-".join(map(str, words))


def ngram(study: Study, order: int = 5) -> dict[str, float]:
    """Return the test perplexity of interpolated Kneser-Ney models with the same words and line ends."""
    words = words_of(study.task)
    text = [read_tokens(split, words).tolist() for split in (study.task.train, study.task.test)]
    return {str(n): kneser_ney(*text, len(words), n) for n in (3, order)}


def kneser_ney(train: list[int], test: list[int], vocabulary: int, order: int) -> float:
    """Return the perplexity of all words of `test` but the first; one discount n1 / (n1 + 2·n2) per order."""
    counts: list[Counter] = [Counter() for _ in range(order)]  # of n-grams, n = 1 …; below the last, of types
    counts[-1] = Counter(zip(*(train[i:] for i in range(order))))
    for n in range(order - 2, -1, -1):
        counts[n] = Counter(gram[1:] for gram in counts[n + 1])
    totals = [defaultdict(int) for _ in range(order)]
    kinds = [defaultdict(int) for _ in range(order)]
    discounts = []
    for n, table in enumerate(counts):
        ones, twos = (sum(1 for c in table.values() if c == k) for k in (1, 2))
        discounts.append(ones / (ones + 2 * twos) if ones and twos else 0.5)
        for gram, count in table.items():
            totals[n][gram[:-1]] += count
            kinds[n][gram[:-1]] += 1
    loss = 0.0
    for i in range(1, len(test)):
        chance = 1 / vocabulary
        for n in range(min(order, i + 1)):
            before, gram = tuple(test[i - n : i]), tuple(test[i - n : i + 1])
            if total := totals[n].get(before):
                rest = discounts[n] * kinds[n][before] / total
                chance = max(counts[n].get(gram, 0) - discounts[n], 0) / total + rest * chance
        loss -= math.log(chance)
    return math.exp(loss / (len(test) - 1))


def train_both(study: Study) -> None:
    """Train both models from the same settings, and measure them."""
    size, given = study.size, study.given
    common = {"hidden_size": size["width"], "num_hidden_layers": size["layers"], "cutoffs": size["cutoffs"]}
    common |= {"num_attention_heads": size["heads"], "mem_length": given.segment, "attention_dropout": 0}
    how = {"epochs": size["epochs"], "lr": size["lr"], "batch_size": 16, "lr_schedule": "cosine"}
    how |= {"lr_end": size["lr"] / 10, "max_length": given.segment, "validation": given.segments}
    for kind, wide in KINDS.items():

        def work(kind: str = kind, wide: str = wide) -> dict[str, Any]:
            place = study.path(kind)
            espalier.train(kind, study.task, place, **common, **{wide: size["wide"]}, **how, seed=given.seed)
            return measured(espalier.evaluate(place, study.task, **study.data))

        study.once(kind, work)


def measured(found: Any) -> dict[str, Any]:
    """Shorten an assessment: perplexity on test data with its interval, and what the model costs."""
    test = found["test"]
    kept = {name: test[name] for name in ("perplexity", "low", "high", "words", "segment", "memory")}
    counts = {name: found[name] for name in ("heads", "parameters", "macs")}
    return {**kept, "validation": found["validation"]["perplexity"], **counts}


def gates(study: Study) -> None:
    """Prune both models by gates to several fractions, each in one short epoch."""
    for kind in KINDS:
        for remove in FRACTIONS:

            def work(kind: str = kind, remove: float = remove) -> dict[str, Any]:
                how = {"remove": remove, "folder": study.path(kind, "gates", remove), **study.loop}
                found = espalier.prune(study.path(kind), study.short, "gates", **how, **study.data)
                return {**measured(found["after"]), "layers": [one["kept"] for one in found["layers"]]}

            study.once(f"{kind} gates {remove}", work)
        # the same steps without pruning: what a short epoch alone does

        def control(kind: str = kind) -> dict[str, Any]:
            place = study.path(kind, "control")
            found = espalier.recover(study.path(kind), study.short, place, **study.loop, **study.data)
            return measured(found["after"])

        study.once(f"{kind} control", control)


def methods(study: Study) -> None:
    """Prune half of All-attention's heads by other methods, and train them for the same steps."""
    source = study.path("all_attention")
    asked = {
        "gnorm": {"method": "gnorm", "target": "heads", "remove": 0.5},
        "taylor": {"method": "taylor", "target": "heads", "remove": 0.5},
        "fisher, repaired": {"method": "fisher", "target": "heads", "macs": 0.5, "repair": "refit"},
    }
    for name, how in asked.items():

        def work(name: str = name, how: dict[str, Any] = how) -> dict[str, Any]:
            place = study.path("all_attention", name.split(",")[0])
            once = espalier.prune(
                source, study.task, folder=place, calibration=64, overwrite=True, **how, **study.data
            )
            after = study.path("all_attention", name.split(",")[0], "recovered")
            again = espalier.recover(place, study.short, after, **study.loop, **study.data)
            return {"one-shot": measured(once["after"]), "recovered": measured(again["after"])}

        study.once(f"method {name}", work)


class Watched(Gates):
    """Gates that note the loss of every step, and how many are closed after it."""

    def on_start(self, run: Any) -> None:
        super().on_start(run)
        self.losses: list[float] = []
        self.closed: list[int] = []

    def after_step(self, run: Any) -> None:
        super().after_step(run)
        self.losses.append(run.losses[-1])
        self.closed.append(sum(int((~decide(gate)).sum()) for gate in self.log_alpha.values()))


def ablation(study: Study) -> None:
    """Switch off each of the three techniques, with a penalty instead of a fraction."""
    for label, switched in TECHNIQUES.items():

        def work(switched: dict[str, Any] = switched) -> dict[str, Any]:
            model, words = espalier.load(study.path("all_attention")), words_of(study.task)
            callback = Watched(penalty=study.given.penalty, until=1.0, **switched)
            how = {**study.loop, "lr_schedule": "constant", "warmup": 0.0, "seed": study.given.seed}
            how |= {"max_length": study.given.segment, "kind": "language"}
            train(model, words, study.short.train, callback=callback, **how)
            found = measured(espalier.evaluate(model, study.task, tokenizer=words, **study.data))
            smooth = np.convolve(callback.losses, np.ones(10) / 10, "valid")
            tenth = callback.closed[len(callback.closed) // 10]
            facts = {"closed": callback.closed[-1], "closed after a tenth": tenth}
            return {**found, **facts, "highest loss": float(smooth.max()), "last loss": float(smooth[-1])}

        study.once(f"ablation {label}", work)


def speed(study: Study) -> None:
    """Time the pruned checkpoints against the ideal of their MACs."""

    def work() -> list[dict[str, Any]]:
        dense = study.path("all_attention")
        places = [dense, *(study.path("all_attention", "gates", f) for f in (0.25, 0.5, 0.75))]
        trained = timed([espalier.load(place) for place in places], study.given.segment, "trained")
        for row, place in zip(trained, places):
            row["peak MiB"] = peak(place)
        return trained

    study.once("speed", work)


def width(study: Study) -> None:
    """Time cuts of a model of the published width, with random weights."""
    study.once("width", lambda: timed(wide_models(), 192, "512 wide, 4 layers, random"))


def wide_models() -> list[Any]:
    """Return a model of the published width, and cuts of it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"num_hidden_layers": 4, "vocab_size": 1000, "cutoffs": []}
    out = [AutoModelForCausalLM.from_config(AutoConfig.for_model("all_attention", **sizes)).eval()]
    for count in (2, 4, 6):
        small = copy.deepcopy(out[0])
        espalier.prune_heads(small, {layer: list(range(count)) for layer in range(4)})
        out.append(small)
    return out


def timed(
    models: list[Any], segment: int, what: str, batch: int = 4, rounds: int = 10
) -> list[dict[str, Any]]:
    """Return tokens per second of the processor, and the ideal: those of the first by the ratio of MACs.

    The memory is full. The time of the process counts, the best of several rounds in turn, so that other
    programs matter little.
    """
    ids = torch.randint(0, 1000, (batch, segment), generator=torch.Generator().manual_seed(0))
    found = [math.inf] * len(models)
    with ExitStack() as stack, torch.inference_mode():
        for model in models:
            stack.enter_context(Memory().carried(model))
        for number in range(-2, rounds):  # the first two fill the memory
            for i, model in enumerate(models):
                start = time.process_time()
                model(ids)
                if number >= 0:
                    found[i] = min(found[i], time.process_time() - start)
    rows = []
    for model, seconds in zip(models, found):
        config, counts = model.config, cost(model, segment)
        head = config.cutoffs[0] if config.cutoffs else config.vocab_size
        rest = config.vocab_size - head
        softmax = segment * (head * config.hidden_size + rest * config.hidden_size // config.div_value)
        macs = counts.macs + softmax  # while nothing but logits is asked for, all words are computed
        rate = batch * segment / seconds
        rows.append({"what": what, "heads": counts.heads, "macs": macs, "tokens a second": rate})
    for row in rows:
        row["ideal"] = rows[0]["tokens a second"] * rows[0]["macs"] / row["macs"]
    return rows


def peak(place: Path) -> float:
    """Return the most memory that a process needs to load a model and read a segment, in MiB."""
    code = (
        "import resource, sys, torch, espalier\n"
        "model = espalier.load(sys.argv[1])\n"
        "with torch.inference_mode(): model(torch.zeros(4, 32, dtype=torch.long), mems=())\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(place)], capture_output=True, text=True, check=True
    )
    return round(float(done.stdout.split()[-1]), 1)


def classifier(study: Study) -> None:
    """Prune a classifier by gates in one epoch, and by a criterion with the same epoch afterwards."""
    model, data = study.given.classifier, study.given.sentences
    loop = {"epochs": 1, "batch_size": 32, "lr": 3e-5, "examples": study.given.examples, "max_length": 64}
    for remove in (0.25, 0.5, 0.75):

        def by_gates(remove: float = remove) -> dict[str, Any]:
            place = study.path("classifier", "gates", remove)
            found = espalier.prune(model, data, "gates", remove=remove, folder=place, **loop)
            return {**accuracy(found["after"]), "before": accuracy(found["before"])}

        def afterwards(remove: float = remove) -> dict[str, Any]:
            place = study.path("classifier", "gnorm", remove)
            once = espalier.prune(
                model, data, "gnorm", remove=remove, folder=place, max_length=64, overwrite=True
            )
            again = espalier.recover(place, data, study.path("classifier", "recovered", remove), **loop)
            return {**accuracy(again["after"]), "one-shot": accuracy(once["after"])}

        study.once(f"classifier gates {remove}", by_gates)
        study.once(f"classifier gnorm, recovered {remove}", afterwards)


def accuracy(found: Any) -> dict[str, float]:
    return {name: found["test"][name] for name in ("accuracy", "low", "high", "n")}


def at_equal_size(found: dict[str, Any]) -> dict[float, list[float]]:
    """Return for each pruned Transformer-XL [parameters, perplexity, All-attention's at this size].

    All-attention's curve is the logarithm of its perplexity, linear between its own sizes; what was trained
    for the same steps without pruning is its first point.
    """
    names = ["all_attention control", *(f"all_attention gates {remove}" for remove in FRACTIONS)]
    if not all(name in found for name in names):
        return {}
    sizes, values = zip(*sorted((found[n]["parameters"], math.log(found[n]["perplexity"])) for n in names))
    out = {}
    for remove in FRACTIONS:
        other = found.get(f"transformer_xl gates {remove}")
        if other and sizes[0] <= other["parameters"] <= sizes[-1]:
            there = math.exp(float(np.interp(other["parameters"], sizes, values)))
            out[remove] = [other["parameters"], other["perplexity"], there]
    return out


def higher_by(pairs: list[list[float]]) -> str:
    """Return by how many per cent the second perplexity is higher, with a t-interval over seeds."""
    from scipy.stats import t

    logs = [math.log(other / mine) for _, mine, other in pairs]
    mean, n = float(np.mean(logs)), len(logs)
    if n < 2:
        return f"{100 * math.expm1(mean):+.1f} %"
    half = float(t.ppf(0.975, n - 1) * np.std(logs, ddof=1) / math.sqrt(n))
    low, high = (100 * math.expm1(x) for x in (mean - half, mean + half))
    return f"{100 * math.expm1(mean):+.1f} % [{low:+.1f}, {high:+.1f}]"


def write(study: Study) -> None:
    """Write tables, the results and the figure of what is there."""
    from espalier.reports import style
    from espalier.reports.figures.layers import draw_kept

    found = study.found
    RESULTS.mkdir(parents=True, exist_ok=True)
    shutil.copy(study.file, RESULTS / "results.json")
    size = study.size
    lines = ["# All-attention, Transformer-XL and learned gates", ""]
    lines += [f"Made by `benchmarks/all_attention.py` with `--size {study.given.size}`."]
    if "all_attention" in found:
        shape = f"{size['layers']} layers, {size['width']} wide, {size['heads']} heads each"
        lines[-1] += (
            f" Models have {shape}; {size['epochs']} epochs of the text; every pruning has one epoch of"
        )
        lines[-1] += f" the first {size['lines']} lines. Seed 0. Perplexity is per word of test text, ends of"
        lines[-1] += " lines included; 95 % intervals by a bootstrap over segments."
    left = [name for name in STAGES if not any(key.startswith(KEYS.get(name, name)) for key in found)]
    if left:
        lines += ["", f"Not run yet: {', '.join(left)}."]
    if "ngram" in found:
        three, five = (found["ngram"][n] for n in "35")
        lines += ["", f"Interpolated Kneser-Ney, same words: {three:.1f} (3-gram), {five:.1f} (5-gram)."]
    models = [(k, v) for k, v in found.items() if isinstance(v, dict) and "perplexity" in v]
    rows = [
        f"| {name} | {v['heads']} | {v['parameters']:,} | {v['perplexity']:.1f} | "
        f"[{v['low']:.1f}, {v['high']:.1f}] | {' '.join(map(str, v.get('layers', [])))} |"
        for name, v in models
        if not name.startswith("ablation")
    ]
    if rows:
        head = "| model | heads | parameters | perplexity | 95 % | heads by layer |"
        lines += ["", head, "|---|---|---|---|---|---|", *rows]
    seeds = [found, *(json.loads((Path(one) / "results.json").read_text()) for one in study.given.more)]
    equal = [at_equal_size(one) for one in seeds]
    if any(equal):
        lines += [
            "",
            "At equal size, All-attention between its own sizes; a column for each seed of training:",
            "",
        ]
        lines += [
            "| heads of Transformer-XL removed | parameters |"
            + "".join(f" Transformer-XL, All-attention, seed {i} |" for i in range(len(seeds)))
            + " All-attention higher by |"
        ]
        lines += ["|---|---|" + "---|" * len(seeds) + "---|"]
        for remove in sorted({remove for one in equal for remove in one}):
            count = next(one[remove][0] for one in equal if remove in one)
            cells = [f"{one[remove][1]:.1f}, {one[remove][2]:.1f}" if remove in one else "" for one in equal]
            cells += [higher_by([one[remove] for one in equal if remove in one])]
            lines += [f"| {remove:.4g} | {count:,} | " + " | ".join(cells) + " |"]
        whole = [
            [0, one["transformer_xl"]["perplexity"], one["all_attention"]["perplexity"]] for one in seeds
        ]
        cells = [f"{mine:.1f}, {other:.1f}" for _, mine, other in whole]
        lines += ["| 0 | 972,049 and 970,513 | " + " | ".join([*cells, higher_by(whole)]) + " |"]
        for number, more in enumerate(seeds[1:], 1):
            place = RESULTS / f"seed{number}.json"
            place.write_text(json.dumps(more, indent=1) + "\n")
    rows = [
        f"| {name.removeprefix('method ')} | {v['one-shot']['heads']} | {v['one-shot']['perplexity']:.1f} | "
        f"{v['recovered']['perplexity']:.1f} [{v['recovered']['low']:.1f}, {v['recovered']['high']:.1f}] |"
        for name, v in found.items()
        if name.startswith("method ")
    ]
    if rows:
        lines += [
            "",
            "| half of the heads by | left | one-shot | after the same epoch |",
            "|---|---|---|---|",
            *rows,
        ]
    rows = [
        f"| {name.removeprefix('ablation ')} | {v['perplexity']:.1f} [{v['low']:.1f}, {v['high']:.1f}] | "
        f"{v['closed after a tenth']} | {v['closed']} | {v['highest loss']:.3f} | {v['last loss']:.3f} |"
        for name, v in found.items()
        if name.startswith("ablation ")
    ]
    if rows:
        head = "| perplexity | closed after a tenth | closed | highest loss | last |"
        head = f"| penalty {study.given.penalty:g} {head}"
        lines += ["", head, "|---|---|---|---|---|---|", *rows]
    timings = [*found.get("speed", []), *found.get("width", [])]
    if timings:
        head = "| model | heads | tokens a second of the processor | ideal by MACs | of it | peak MiB |"
        lines += ["", head, "|---|---|---|---|---|---|"]
        lines += [
            f"| {r['what']} | {r['heads']} | {r['tokens a second']:,.0f} | {r['ideal']:,.0f} | "
            f"{r['tokens a second'] / r['ideal']:.0%} | {r.get('peak MiB', '')} |"
            for r in timings
        ]
    rows = [
        f"| {name.removeprefix('classifier ')} | {v['accuracy']:.4f} [{v['low']:.4f}, {v['high']:.4f}] |"
        for name, v in found.items()
        if name.startswith("classifier ")
    ]
    if rows:
        lines += ["", "| classifier | accuracy |", "|---|---|", *rows]
    (RESULTS / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    panels = {
        kind: {f"{remove:.4g} removed": found[f"{kind} gates {remove}"]["layers"] for remove in FRACTIONS}
        for kind in KINDS
        if all(f"{kind} gates {remove}" in found for remove in FRACTIONS)
    }
    if panels:
        with style.matplotlib_settings():
            figure = draw_kept(panels, {kind: ("heads", [size["heads"]] * size["layers"]) for kind in panels})
            style.lay_out(figure)
            figure.savefig(FIGURE)


KEYS = {"train": "all_attention", "gates": "all_attention gates", "methods": "method "}  # in results.json
STAGES = {
    "ngram": lambda study: study.once("ngram", lambda: ngram(study)),
    "train": train_both,
    "gates": gates,
    "methods": methods,
    "ablation": ablation,
    "speed": speed,
    "width": width,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus")
    parser.add_argument("-o", "--folder", required=True)
    parser.add_argument("--size", default="full", choices=SIZES)
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--segment", type=int, default=32, help="words of a segment, and of the memory")
    parser.add_argument("--segments", type=int, default=3000, help="of validation and test text, at most")
    parser.add_argument("--penalty", type=float, default=0.02, help="of the ablation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--classifier", help="a trained classifier")
    parser.add_argument("--sentences", help="its task")
    parser.add_argument("--examples", type=int, help="to train the classifier on; default: all")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--more", nargs="*", default=[], help="folders of other seeds, with --write")
    given = parser.parse_args()
    study = Study(given)
    torch.set_num_threads(1)
    for name in [] if given.write else given.stages.split(","):
        STAGES[name](study)
    if given.write:
        write(study)
    elif given.classifier:
        classifier(study)


if __name__ == "__main__":
    main()
