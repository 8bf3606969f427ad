"""Trace what a verb visits: files of espalier in which a function runs, and crossings of the command line.

    python benchmarks/visits.py              a table of all verbs, on a tiny model
    python benchmarks/visits.py compare -v   the crossings and files of one verb

A crossing is a distinct pair of functions (caller, callee) of which one is in espalier/cli, the other not, in
either direction. Module and class bodies are not functions; what runs during an import does not count.
Files are counted by stage: those of making a report from rows on disk (the last stage of `compare`, and all
that `report` does), and those of everything else. A file that both stages visit counts in both.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
SOURCE = Path(__file__).parents[1] / "src" / "espalier"
MOST_CROSSINGS = 4  # of every verb
MOST_FILES = 52  # of `compare`, until everything is measured
REPORT = "reproductions/sources.py make_report"


@dataclass
class Trace:
    """What a call visited: `report` are the files of making a report, `files` those of the rest."""

    files: set[str] = field(default_factory=set)
    report: set[str] = field(default_factory=set)
    crossings: set[tuple[str, str]] = field(default_factory=set)


def trace(call: Callable[[], Any]) -> Trace:
    """Run a function and return what it visited."""
    found, root, names = Trace(), f"{SOURCE}{os.sep}", dict[Any, str | None]()

    def name_of(frame: FrameType) -> str | None:
        """`api.py compare`; None for other packages, module and class bodies."""
        code = frame.f_code
        if code not in names:
            own = code.co_filename.startswith(root) and code.co_flags & inspect.CO_OPTIMIZED
            names[code] = f"{code.co_filename.removeprefix(root)} {code.co_name}" if own else None
        return names[code]

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        name = name_of(frame) if event == "call" else None
        if name is None:
            return
        caller, above, stage = None, frame.f_back, found.report if name == REPORT else found.files
        while above is not None:
            if above.f_code.co_filename.startswith("<frozen importlib"):
                return  # runs while a module is imported
            caller = caller or name_of(above)
            stage = found.report if name_of(above) == REPORT else stage
            above = above.f_back
        stage.add(name.partition(" ")[0])
        if caller is not None and caller.startswith("cli") != name.startswith("cli"):
            found.crossings.add((caller, name))

    sys.setprofile(on_event)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def commands(place: Path) -> dict[str, list[Any]]:
    """Return the words of every verb, in an order in which each finds what it needs."""
    import toys

    model, data = toys.folder_with_model(place / "model"), toys.table_of(place / "data.tsv")
    small = ["--validation", "20", "--test", "20", "--max-length", "16"]
    quick = ["--task", data, "--calibration", "8", *small]
    train = ["--epochs", "1", "--examples", "16"]
    weights = ["--target", "weights", "--remove", "0.5", "--epochs", "1"]
    return {
        "compare": ["compare", model, *quick, "--methods", "gnorm", "-o", place / "run"],
        "prune heads": ["prune", model, *quick, "--remove", "0.5", "-o", place / "small"],
        "prune weights": ["prune", model, *quick, *weights, "-o", place / "sparse"],
        "train": ["train", model, "--task", data, *train, "-o", place / "tuned"],
        "evaluate": ["evaluate", model, "--task", data, *small],
        "report": ["report", place / "run"],
        "score": ["score", model, "--task", data, "--calibration", "8"],
        "recover": ["recover", place / "small", "--task", data, *small, *train, "-o", place / "recovered"],
        "encode": ["encode", place / "sparse", "-o", place / "packed"],
        "measure": ["measure", model, "--rounds", "1", "--max-length", "8"],
        "look": ["look", model],
        "list": ["list", "criteria"],
    }


def trace_verb(words: Sequence[Any]) -> Trace:
    """Trace one command."""
    from espalier.cli import app

    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        return trace(lambda: app([str(word) for word in words], standalone_mode=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("verbs", nargs="*", help="all by default; a verb runs after those it needs")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the crossings and the files")
    asked = parser.parse_args()
    print("verb            crossings   files  of the report")
    with tempfile.TemporaryDirectory() as place:
        for verb, words in commands(Path(place)).items():
            found = trace_verb(words)
            if not asked.verbs or verb in asked.verbs:
                print(
                    f"{verb:15}{len(found.crossings):10}{len(found.files):8}{len(found.report):15}",
                    flush=True,
                )
                if asked.verbose:
                    lines = [f"{caller} -> {callee}" for caller, callee in sorted(found.crossings)]
                    lines += [*sorted(found.files), *(f"report: {name}" for name in sorted(found.report))]
                    print(*(f"  {line}" for line in lines), sep="\n")


if __name__ == "__main__":
    main()
