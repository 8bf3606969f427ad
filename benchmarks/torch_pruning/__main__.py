"""espalier and Torch-Pruning: of which models each can remove half of the heads, and how long it takes.

    python -m benchmarks.torch_pruning                 from the project's root; ten minutes on one core
    python -m benchmarks.torch_pruning --rounds 1      quicker, noisier

Torch-Pruning has an environment of its own, `benchmarks/.venv-torch-pruning`, created by the first run. Every
case is a process of its own, one after the other, with one thread: this module again, with `--case`, which
prints one line of JSON. What is printed is also written to `benchmarks/results/`.
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
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(do_case(*arguments.case)))
        return
    environment.make()
    paragraphs = header(arguments.rounds)
    by_family, times = families.run(), timing.run(arguments.rounds)
    paragraphs += section(families, families.rows(by_family)) + section(timing, timing.rows(times))
    sentences = families.sentences(by_family) + timing.sentences(times)
    paragraphs += ["## In words", "\n".join(f"- {sentence}" for sentence in sentences)]
    text = "\n\n".join(paragraphs)
    print(text)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(text + "\n", encoding="utf-8")
    environment.log(f"written to {RESULT.relative_to(environment.ROOT)}")


def do_case(table, tool, *rest):
    """Return the result of one case, in the process that was started for it."""
    torch.set_num_threads(1)
    try:
        if table == "versions":
            return {name: version(name) for name in rest}
        module = import_module(f".{FILES[tool]}", __package__)
        return module.half(*rest) if table == "families" else timing.measure(module, *rest)
    except Exception as error:
        return {"error": first_line(error)}


def header(rounds):
    """Return the title, the command, and the versions of both environments."""
    sides = []
    for tool in ("espalier", "Torch-Pruning"):
        names = (tool.lower(), "torch", "transformers")
        found = environment.run_case("versions", tool, *names, timeout=60)
        sides.append(", ".join(f"{name} {number}" for name, number in found.items()))
    return [
        "# espalier and Torch-Pruning, half of the heads",
        f"    python -m benchmarks.torch_pruning --rounds {rounds}",
        f"Python {platform.python_version()}; {sides[0]}; in the other environment {sides[1]}. "
        f"{rounds} rounds; {os.cpu_count()} cores, shared with others; one thread, one process at a time.",
    ]


def section(table, rows):
    """Return a table as Markdown, under its title and with its note."""
    lines = [table.COLUMNS, ["---"] * len(table.COLUMNS), *rows]
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    text = "\n".join("| " + " | ".join(line) + " |" for line in escaped)
    return [f"## {table.TITLE}", text, table.NOTE]


if __name__ == "__main__":
    main()
