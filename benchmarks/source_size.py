"""Count src at two revisions: all lines, lines that execute, and statements.

    python benchmarks/source_size.py                    6d080be beside HEAD
    python benchmarks/source_size.py 6d080be 3cf3c6c    two other revisions
    python benchmarks/source_size.py --format           both formatted as pyproject.toml says now

An executable line holds code: no blank line, comment, docstring or import. Statements, without docstrings and
imports, do not depend on how long a line may be. `FEATURES` names what a revision can do that the base could
not, as files, folders, functions and methods, beside what the base had in its place; without their growth,
the two revisions have the same features.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from pathlib import Path
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
    "the contract of criteria": (["testing/criterion.py", "testing/outcome.py:check_criterion"], []),
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
    "units pruned gradually": (
        ["training/gradual.py:GradualUnits", "experiment/walk.py:TrainCutWalk"],
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
    """Lines, those of them that execute, and statements."""

    lines: int = 0
    executable: int = 0
    statements: int = 0

    def __add__(self, other: Size) -> Size:  # type: ignore[override]
        return Size(*(a + b for a, b in zip(self, other)))

    def __sub__(self, other: Size) -> Size:
        return Size(*(a - b for a, b in zip(self, other)))

    def __str__(self) -> str:
        return f"{self.lines:9,}{self.executable:12,}{self.statements:12,}"


def read_source(revision: str) -> dict[str, str]:
    """Return the text of every Python file of src at a revision, by its path below the package."""
    listed = _git("ls-tree", "-r", "--name-only", revision, SOURCE).splitlines()
    paths = [path for path in listed if path.endswith(".py")]
    return {path.removeprefix(f"{SOURCE}/"): _git("show", f"{revision}:{path}") for path in paths}


def format_source(source: dict[str, str]) -> dict[str, str]:
    """Return the files as ruff formats them now: longer lines are fewer lines."""
    with tempfile.TemporaryDirectory() as folder:
        places = {path: Path(folder) / path for path in source}
        for path, place in places.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(source[path], encoding="utf-8")
        words = ["-m", "ruff", "format", "--quiet", "--config", str(ROOT / "pyproject.toml"), folder]
        subprocess.run([sys.executable, *words], check=True)
        return {path: place.read_text(encoding="utf-8") for path, place in places.items()}


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
    statements = [each for each in ast.walk(node) if isinstance(each, ast.stmt) and not _is_silent(each)]
    executable = [line for line in coded - skipped if first <= line <= end]
    return Size(end - first + 1, len(executable), len(statements))


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
        found[_room(path)] = found.get(_room(path), Size()) + size_of(text)
    return dict(sorted(found.items()))


def _room(path: str) -> str:
    return path.partition("/")[0] if "/" in path else "(beside the folders)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", nargs="?", default=BASE)
    parser.add_argument("revision", nargs="?", default="HEAD")
    parser.add_argument("--format", action="store_true", help="format both as pyproject.toml says now")
    asked = parser.parse_args()
    before, after = read_source(asked.base), read_source(asked.revision)
    if asked.format:
        before, after = format_source(before), format_source(after)
    totals = {}
    for revision, source in ((asked.base, before), (asked.revision, after)):
        print(f"{revision:46}     lines  executable  statements")
        found = rooms(source)
        totals[revision] = total = sum(found.values(), Size())
        files = Counter(_room(path) for path in source)
        for room, size in found.items():
            print(f"  {room:34}{files[room]:4} files{size}")
        print(f"  {'all':34}{len(source):4} files{total}\n")
    print("features that the base did not have")
    grown = Size()
    for feature, (now, then) in FEATURES.items():
        size = sum_of(after, now) - sum_of(before, then)
        grown += size
        print(f"  {feature:44}{size}")
    print(f"  {'all':44}{grown}\n")
    now, then = totals[asked.revision], totals[asked.base]
    for about, size in (("as it is", now), ("without these features", now - grown)):
        print(f"{about:46}{size}   " + ", ".join(f"{100 * (b / a - 1):+.1f} %" for a, b in zip(then, size)))


if __name__ == "__main__":
    main()
