"""Count the lines of src at two revisions: all of them, and those that execute.

    python benchmarks/source_size.py                    6d080be beside HEAD
    python benchmarks/source_size.py 6d080be 3cf3c6c    two other revisions

An executable line holds code: no blank line, comment, docstring or import. `FEATURES` names what a revision
can do that the base could not, as files, folders, functions and methods, each beside what the base had in
its place; without their growth, the two revisions have the same features.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tokenize
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = "src/espalier"
BASE = "6d080be"
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

# feature -> what it consists of, what the base had instead
FEATURES: dict[str, tuple[list[str], list[str]]] = {
    "verbs as Python functions": (["api.py"], []),
    "outcomes, also as HTML": (
        [
            *(
                f"reports/outcome.py:{name}"
                for name in ("Outcome", "ModelOutcome", "ScoreOutcome", "Comparison")
            ),
            *(f"reports/tables.py:Table.{name}" for name in ("to_text", "to_html")),
            "reports/__init__.py:Report._repr_html_",
        ],
        [],
    ),
    "progress by one callback": (["core/progress.py"], []),
    "live models": (["experiment/model.py:_from_live"], []),
    "every keyword by --set": (["cli/app.py:further"], []),
    "errors with types and fields, shown as flags": (
        ["core/errors.py", "cli/show.py:in_flags"],
        ["errors.py"],
    ),
    "the contract of criteria": (["testing/criterion.py"], []),
    "outcomes of checks": (["testing/outcome.py"], []),
    "metrics as files": (["evaluation/metrics"], ["metrics.py"]),
    "tasks as files": (["tasks/catalogue", "tasks/sources.py:named_tasks"], ["tasks/demo.py"]),
    "figures as files": (["reports/figures/__init__.py"], []),
    "measure: latency of models": (
        [
            *("evaluation/latency.py", "experiment/latency.py", "cli/measure.py"),
            "reports/outcome.py:latency_table",
        ],
        ["latency.py"],
    ),
    "export and list as verbs of their own": (["cli/export.py"], []),
    "units: gradual, and recovered in a comparison": (
        ["training/gradual.py:GradualUnits", "experiment/walk.py:TrainWalk"],
        [],
    ),
    "runs of version 1 are read": (
        [
            *(f"analysis/reader.py:{name}" for name in ("_upgrade_run", "_upgrade_row", "_rename")),
            "reproductions/recipe.py:_rename",
        ],
        [],
    ),
}


class Size(NamedTuple):
    """Lines, and those of them that execute."""

    lines: int = 0
    executable: int = 0

    def __add__(self, other: Size) -> Size:  # type: ignore[override]
        return Size(self.lines + other.lines, self.executable + other.executable)

    def __sub__(self, other: Size) -> Size:
        return Size(self.lines - other.lines, self.executable - other.executable)


def read_source(revision: str) -> dict[str, str]:
    """Return the text of every Python file of src at a revision, by its path below the package."""
    listed = _git("ls-tree", "-r", "--name-only", revision, SOURCE).splitlines()
    paths = [path for path in listed if path.endswith(".py")]
    return {path.removeprefix(f"{SOURCE}/"): _git("show", f"{revision}:{path}") for path in paths}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def size_of(text: str, name: str = "") -> Size:
    """Count a file, or one function, class or method of it."""
    tree = ast.parse(text)
    node: ast.AST = tree
    for part in filter(None, name.split(".")):
        node = next(each for each in ast.iter_child_nodes(node) if getattr(each, "name", None) == part)
    last = text.count("\n")
    first, end = (1, last) if node is tree else _span(node)
    skipped = {
        line
        for each in ast.walk(tree)
        if _is_silent(each)
        for line in range(each.lineno, each.end_lineno + 1)
    }
    coded = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in SILENT
        for line in range(token.start[0], token.end[0] + 1)
    }
    return Size(end - first + 1, len({line for line in coded - skipped if first <= line <= end}))


def _span(node: ast.AST) -> tuple[int, int]:
    decorators = [each.lineno for each in getattr(node, "decorator_list", ())]
    return min([node.lineno, *decorators]), node.end_lineno  # type: ignore[attr-defined]


def _is_silent(node: ast.AST) -> bool:
    """Whether a statement is an import or a docstring."""
    text = (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
    return text or isinstance(node, ast.Import | ast.ImportFrom)


def sum_of(source: dict[str, str], parts: list[str]) -> Size:
    """Count `folder`, `file.py` and `file.py:name` together; raise for what is not there."""
    total = Size()
    for part in parts:
        path, _, name = part.partition(":")
        files = [path] if path in source else [each for each in source if each.startswith(f"{path}/")]
        if not files:
            raise KeyError(f"no {part} at this revision: correct FEATURES")
        for each in files:
            total += size_of(source[each], name)
    return total


def rooms(source: dict[str, str]) -> dict[str, Size]:
    """Count every folder of the package; files beside the folders together."""
    found: dict[str, Size] = {}
    for path, text in source.items():
        parts = PurePosixPath(path).parts
        room = parts[0] if len(parts) > 1 else "(beside the folders)"
        found[room] = found.get(room, Size()) + size_of(text)
    return dict(sorted(found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", nargs="?", default=BASE)
    parser.add_argument("revision", nargs="?", default="HEAD")
    asked = parser.parse_args()
    before, after = read_source(asked.base), read_source(asked.revision)
    totals = {}
    for revision, source in ((asked.base, before), (asked.revision, after)):
        print(f"{revision:48}   lines  executable")
        found = rooms(source)
        totals[revision] = total = sum(found.values(), Size())
        files = Counter(path.partition("/")[0] if "/" in path else "(beside the folders)" for path in source)
        for room, size in found.items():
            print(f"  {room:34}{files[room]:4} files{size.lines:9,}{size.executable:12,}")
        print(f"  {'all':34}{len(source):4} files{total.lines:9,}{total.executable:12,}\n")
    print("features that the base did not have")
    grown = Size()
    for feature, (now, then) in FEATURES.items():
        size = sum_of(after, now) - sum_of(before, then)
        grown += size
        print(f"  {feature:46}{size.lines:8,}{size.executable:12,}")
    print(f"  {'all':46}{grown.lines:8,}{grown.executable:12,}\n")
    base, now = totals[asked.base], totals[asked.revision]
    for about, size in (("as it is", now), ("without these features", now - grown)):
        lines, executable = (100 * (b / a - 1) for a, b in zip(base, size))
        print(f"{about:48}{size.lines:8,}{size.executable:12,}   {lines:+.1f} %, {executable:+.1f} %")


if __name__ == "__main__":
    main()
