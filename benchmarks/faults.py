"""Every change that a verb makes to the disk, as the moment of a kill, of a torn write, of ENOSPC and of EIO.

python -m benchmarks.faults [--scenarios save encode] [--faults kill,torn,ENOSPC,EIO]

For every system call by which a verb changes its folder (counted, none sampled) the verb is run once for each
fault, in a forked child. Afterwards the output must be the old or the new state, byte for byte; an error must
be an EspalierError; and the verb, run again, must end in the state of a run that was never disturbed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
import transformers
from benchmarks.changes import FAULTY, FULL, KILL, TORN, WRITES, Ended, is_temporary, run, unsynced

import espalier
from espalier.io.paths import CARD

FAULTS = (KILL, TORN, FULL, FAULTY)
OUT = "out"
GOOD = ("old", "new", "begun", "moved")
Tree = dict[str, str]
NAMES_OF_TEMPORARIES = re.compile(r"[0-9a-f]{8,}|\.tmp\w+")
SIZES: dict[str, Any] = dict(calibration=8, validation=8, test=8, max_length=16)
SPEED_ON_CARD = re.compile(rb"[\d.]+\xc3\x97|<!-- espalier \w+ -->")  # 1.02×, and the digest of the text
VARIES = ("seconds", "versions", "threads")  # in JSON: what two equal runs may differ in


@dataclass(frozen=True)
class Scenario:
    """A verb whose output is the folder `out`. `prepare` makes what is there before, `work` is the verb."""

    name: str
    prepare: Callable[[Path], object]
    work: Callable[[Path], object]
    grows: bool = False  # its output is rows, which are added one by one


def scenarios() -> list[Scenario]:
    """Return the verbs, each onto an output of its own that is older, or onto nothing."""
    import toys

    from espalier.experiment.runner import run_comparison  # noqa: F401  imported before any child is forked
    from espalier.storage.recode import decode_folder, encode_folder
    from espalier.testing.tiny import tiny, uneven

    classifier = "AutoModelForSequenceClassification"
    tokenizer = toys.tokenizer()

    def model(seed: int, cut: bool = True) -> Any:
        torch.manual_seed(seed)
        made = tiny("bert", classifier, num_hidden_layers=1)
        for parameter in made.parameters():
            parameter.data += 0.01 * seed
        if cut:
            espalier.cut(made, uneven(espalier.sites(made), seed))
        return made

    first, second, sparse = model(1), model(2), model(3, cut=False)
    for parameter in sparse.parameters():
        parameter.data[torch.rand(parameter.shape) < 0.8] = 0
    named = {
        site.name: site.units for site in espalier.sites(model(4, cut=False)) if site.target == "neurons"
    }
    even = {name: torch.arange(units) % 2 == 0 for name, units in named.items()}
    plain = [model(seed, cut=False) for seed in (4, 5)]
    for one in plain:
        espalier.cut(one, espalier.Mask(even))

    def saved(made: Any, name: str = OUT, **options: Any) -> Callable[[Path], object]:
        return lambda place: espalier.save(made, place / name, tokenizer=tokenizer, **options)

    def a_task(place: Path) -> None:
        toys.folder_with_model(place / "model")
        toys.table_of(place / "data.tsv", n=60)

    def verb(name: str, *given: Any, **more: Any) -> Callable[[Path], object]:
        function = getattr(espalier, name)
        called = {**SIZES, **more}
        return lambda place: function(
            str(place / "model"), str(place / "data.tsv"), *given, folder=place / OUT, **called
        )

    train = dict(epochs=2, batch_size=16, examples=32)

    def both(*steps: Callable[[Path], object]) -> Callable[[Path], object]:
        def do(place: Path) -> None:
            for step in steps:
                step(place)

        return do

    def encoded(source: str) -> Callable[[Path], object]:
        return lambda place: encode_folder(place / source, place / OUT, overwrite=True)

    def decoded(source: str) -> Callable[[Path], object]:
        return lambda place: decode_folder(place / source, place / OUT, overwrite=True)

    to_encode = both(saved(sparse, "a"), saved(second, "b"))
    sparser = dict(target="weights", remove=0.5, **train)
    quick = dict(figures=False)
    levels = dict(target="weights", remove=[0.5])
    return [
        Scenario("save, new", lambda place: None, saved(first)),
        Scenario("save, over another", saved(second), saved(first)),
        Scenario("save, sparse", saved(second), saved(sparse, sparse=True)),
        Scenario("encode", both(to_encode, encoded("b")), encoded("a")),
        Scenario(
            "decode",
            both(saved(sparse, "a", sparse=True), saved(second, "b", sparse=True), decoded("b")),
            decoded("a"),
        ),
        Scenario(
            "export",
            lambda place: espalier.export(plain[1], place / OUT, tokenizer=tokenizer),
            lambda place: espalier.export(plain[0], place / OUT, tokenizer=tokenizer),
        ),
        Scenario("prune, heads", both(a_task, verb("prune", "gnorm:static", remove=0.2)),
                 verb("prune", "gnorm:static", remove=0.5)),
        Scenario("prune, weights while training", a_task, verb("prune", "magnitude", **sparser)),
        Scenario("train", a_task, verb("train", **train)),
        Scenario("train, overwrite", both(a_task, verb("train", **{**train, "lr": 1e-3})),
                 verb("train", **train, overwrite=True)),
        Scenario("recover", a_task, verb("recover", **train)),
        Scenario("compare", a_task, verb("compare", "gnorm:static,random:2:every=9", **quick), grows=True),
        Scenario("compare, recovered", a_task,
                 verb("compare", "magnitude", **levels, **quick, **train), grows=True),
    ]  # fmt: skip


def tree(folder: Path, *, hidden: bool = False) -> Tree:
    """Return {file: digest of its content}, without what two equal runs may differ in."""
    out: Tree = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        is_hidden = any(part.startswith(".") for part in Path(name).parts)
        if path.suffix in (".csv", ".html") and not is_hidden:
            continue  # tables and the page of a run hold seconds; both are made again from its rows
        if path.is_file() and (hidden or not is_hidden):
            content = path.read_bytes() if path.suffix != ".xlsx" else b""
            if path.suffix in (".json", ".jsonl") and not is_hidden:
                content = _without_times(content)
            if path.name == CARD:
                content = SPEED_ON_CARD.sub(b"", content)
            out[name] = hashlib.blake2b(content, digest_size=8).hexdigest()
        elif path.is_dir() and hidden:
            out[name + "/"] = ""
    return out


def _without_times(content: bytes) -> bytes:
    try:
        lines = [json.loads(content)] if content.lstrip()[:2] != b'{"' else None
        lines = lines or [json.loads(line) for line in content.splitlines()]
    except ValueError:
        return content
    return "\n".join(json.dumps(_drop(line), sort_keys=True) for line in lines).encode()


def _drop(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _drop(v) for k, v in value.items() if k not in VARIES}
    return [_drop(v) for v in value] if isinstance(value, list) else value


def rows_of(folder: Path) -> list[str]:
    """Return the complete rows of a run, without times."""
    file = folder / "rows.jsonl"
    text = file.read_bytes() if file.exists() else b""
    return [json.dumps(_drop(json.loads(line))) for line in text[: text.rfind(b"\n") + 1].splitlines()]


@dataclass
class Matrix:
    """One scenario: its changes, and what came of every fault at every one of them."""

    scenario: Scenario
    place: Path  # where the verb works: the same path every time
    template: Path  # what it finds there

    def begin(self) -> None:
        """Make the states before and after, by a run that nothing disturbs."""
        self.scenario.prepare(_fresh(self.template))
        self.restore()
        self.old = tree(self.place / OUT)
        undisturbed = run(lambda: self.scenario.work(self.place), self.place)
        if undisturbed.end != "done":
            raise SystemExit(f"{self.scenario.name} fails undisturbed: {undisturbed.message}")
        self.changes = undisturbed.changes
        self.new, self.rows = tree(self.place / OUT), rows_of(self.place / OUT)
        self.known: dict[str, str] = {}

    def restore(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.template, self.place)

    def try_fault(self, at: int, fault: str) -> tuple[str, str]:
        """Return (verdict, details) of one fault at one change."""
        self.restore()
        ended = run(lambda: self.scenario.work(self.place), self.place, at=at, fault=fault)
        if ended.end == "bare":
            last = ended.message.strip().splitlines() or [""]
            return "bare", f"{last[-1]} [{_frame(ended.message)}]"
        state = self.state(ended)
        if state not in GOOD or (ended.end == "done" and state != "new"):
            return "mixture", f"{ended.end} and then {state}"
        again = self.resume()
        return (state, "") if again == "same" else ("not resumed", again)

    def state(self, ended: Ended) -> str:
        """Return which state the output is in."""
        now = tree(self.place / OUT)
        if now == self.new or now == {name: found for name, found in self.new.items() if name != CARD}:
            return "new"  # its card is written afterwards: it may be missing, but never be that of another
        if now == self.old:
            return "old"
        aside = [p for p in self.place.glob(f".{OUT}.old.*") if tree(p) == self.old]
        if not (self.place / OUT).exists() and aside:
            return "moved"
        if self.scenario.grows:
            begun = rows_of(self.place / OUT)
            return "begun" if begun == self.rows[: len(begun)] else "rows of another run"
        if (self.place / OUT / ".espalier-training").is_dir():  # half a result must not pass for a model
            used = run(
                lambda: espalier.evaluate(self.place / OUT, self.place / "data.tsv", **SIZES), self.place
            )
            if used.end == "refused":
                return "begun"
        keys = {name for name in {**now, **self.new, **self.old} if now.get(name) != self.old.get(name)}
        return f"neither old nor new: {sorted(keys)[:4]} of {len(now)} files differ from the old ones"

    def resume(self) -> str:
        """Run the verb again; return `same`, or how its result differs from that of an undisturbed run."""
        # states that differ only inside of what a killed write left beside the output are one
        there = {n: "" if is_temporary(n) else d for n, d in tree(self.place, hidden=True).items()}
        key = json.dumps([(NAMES_OF_TEMPORARIES.sub("", name), digest) for name, digest in there.items()])
        if key not in self.known:
            ended = run(lambda: self.scenario.work(self.place), self.place)
            last = (ended.message.strip().splitlines() or [""])[-1]
            now = tree(self.place / OUT)
            differ = sorted(n for n in {**now, **self.new} if now.get(n) != self.new.get(n))
            same = ended.end == "done" and not differ and rows_of(self.place / OUT) == self.rows
            self.known[key] = "same" if same else f"{ended.end}: {last} {differ[:4]}"
        return self.known[key]


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _frame(message: str) -> str:
    own = re.findall(r"espalier/(\S+?)\.py\", line (\d+), in (\w+)", message)
    return "{}:{} {}".format(*own[-1]) if own else ""


def be_quiet() -> None:
    """Silence what children would print, and use one thread: a fork keeps no others."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)


def examine(scenario: Scenario, place: Path, faults: tuple[str, ...] = FAULTS, every: int = 1) -> Any:
    """Return (counts, changes, failures, unsynced files) of a scenario."""
    matrix = Matrix(scenario, place / "work", place / "template")
    matrix.begin()
    counts: Counter[str] = Counter()
    failures = []
    for at in range(0, len(matrix.changes), every):
        for fault in faults:
            if fault == TORN and matrix.changes[at].call not in WRITES:
                continue
            verdict, why = matrix.try_fault(at, fault)
            counts[fault] += 1
            counts[verdict] += 1
            if verdict not in GOOD:
                change = matrix.changes[at]
                failures.append(f"{scenario.name}: {fault} at {change.call} {change.path}: {verdict}: {why}")
    return counts, matrix.changes, failures, unsynced(matrix.changes)


def main() -> None:
    """Print a line for every scenario, and what failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenarios", nargs="*", default=[""], help="beginnings of their names")
    parser.add_argument("--faults", default=",".join(FAULTS))
    asked = parser.parse_args()
    be_quiet()
    columns = ("changes", *FAULTS, *GOOD, "mixture", "bare", "not resumed", "unsynced")
    print("| verb | " + " | ".join(columns) + " | seconds |")
    print("|---" * (len(columns) + 2) + "|", flush=True)
    total: Counter[str] = Counter()
    wrong: list[str] = []
    for scenario in scenarios():
        if not scenario.name.startswith(tuple(asked.scenarios)):
            continue
        start = time.monotonic()
        shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
        with tempfile.TemporaryDirectory(dir=shared) as place:
            counts, changes, failures, late = examine(scenario, Path(place), tuple(asked.faults.split(",")))
        counts["changes"], counts["unsynced"] = len(changes), len(late)
        total += counts
        wrong += failures + [
            f"{scenario.name}: not on the disk when it was put in place: {name}" for name in late
        ]
        row = " | ".join(f"{counts[name]:,}" for name in columns)
        print(f"| {scenario.name} | {row} | {time.monotonic() - start:.0f} |", flush=True)
    print("| all | " + " | ".join(f"{total[name]:,}" for name in columns) + " | |\n")
    for line in wrong:
        print("-", line)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
