"""espalier beside Torch-Pruning: of which models each can take half of the heads, and how long it takes.

    python -m benchmarks.torch_pruning                 from the project's root; ten minutes on one core
    python -m benchmarks.torch_pruning --rounds 1      quicker, noisier

Torch-Pruning lives in an environment of its own, `benchmarks/.venv-torch-pruning`, made the first time.
Every case is a process of its own, started one after the other, with one thread: this module again, with
`--case`, which answers with one line of JSON. What is printed is also written to `benchmarks/results/`.
"""

import argparse
import json
import os
import platform
from importlib import import_module
from importlib.metadata import version

import torch

from . import environment, families, timing
from .check import first_line

RESULT = environment.ROOT / "benchmarks" / "results" / "torch_pruning.md"
# Only the process that needs a tool imports it: each is missing from the other's environment.
FILES = {
    "by hand": "by_hand",
    "plain": "by_hand",
    "espalier": "with_espalier",
    "Torch-Pruning": "with_torch_pruning",
}


def main():
    first_sentence = __doc__.partition("\n")[0]
    parser = argparse.ArgumentParser("python -m benchmarks.torch_pruning", description=first_sentence)
    parser.add_argument("--rounds", type=int, default=2, help="how often each row is timed")
    parser.add_argument("--case", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case:
        print(json.dumps(run_case(*asked.case)))
        return
    environment.make()
    parts = header(asked.rounds)
    which, long = families.run(), timing.run(asked.rounds)
    parts += section(families, families.rows(which)) + section(timing, timing.rows(long))
    said = families.sentences(which) + timing.sentences(long)
    parts += ["## What they say", "\n".join(f"- {sentence}" for sentence in said)]
    text = "\n\n".join(parts)
    print(text)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(text + "\n", encoding="utf-8")
    environment.say(f"written to {RESULT.relative_to(environment.ROOT)}")


def run_case(table, tool, *rest):
    torch.set_num_threads(1)
    try:
        if table == "versions":
            return {name: version(name) for name in rest}
        does = import_module(f".{FILES[tool]}", __package__)
        return does.half(*rest) if table == "families" else timing.measure(does, *rest)
    except Exception as error:
        return {"error": first_line(error)}


def header(rounds):
    sides = []
    for tool in ("espalier", "Torch-Pruning"):
        names = (tool.lower(), "torch", "transformers")
        found = environment.ask("versions", tool, *names, patience=60)
        sides.append(", ".join(f"{name} {number}" for name, number in found.items()))
    return [
        "# espalier and Torch-Pruning, half of the heads",
        f"    python -m benchmarks.torch_pruning --rounds {rounds}",
        f"Python {platform.python_version()}; {sides[0]}; in the other environment {sides[1]}. "
        f"{rounds} rounds; {os.cpu_count()} cores, shared with others; one thread, one process at a time.",
    ]


def section(table, rows):
    """A table as markdown, under its title and with its note."""
    lines = [table.COLUMNS, ["---"] * len(table.COLUMNS), *rows]
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    text = "\n".join("| " + " | ".join(line) + " |" for line in escaped)
    return [f"## {table.TITLE}", text, table.NOTE]


if __name__ == "__main__":
    main()
