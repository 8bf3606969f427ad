"""Small changes to the code that cuts, loads, chooses and keeps rows: how many do the tests notice?

python -m benchmarks.mutation --mutants 300 --seed 0 --state mutation.json

A mutant is one change to the syntax tree of one file: a comparison, an operator, a constant, a condition
turned round, a statement or a check left out. Mutants are drawn by a seed from all places of all files. Each
is imported in a forked child instead of the file, and the tests of that file are run until one fails or the
time is over. A mutant that no test notices is printed with its line.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = Path(os.environ.get("PYTHONPATH", "").split(os.pathsep)[0] or ROOT / "src") / "espalier"
# file -> the tests of what it does, those first that end soonest
FILES = {
    "io/rows.py": ["test_io.py", "test_hostile_files.py", "test_faults.py", "test_results.py"],
    "selection/scopes.py": ["test_scopes.py", "test_schedules.py"],
    "selection/schedules.py": ["test_schedules.py"],
    "selection/pace.py": ["test_pace.py"],
    "pruning/cut.py": [
        "test_hook.py",
        "test_cut.py",
        "test_layers.py",
        "test_compatibility.py",
        "test_storage.py",
    ],
    "pruning/skeleton.py": [
        "test_hook.py",
        "test_layers.py",
        "test_fuzz.py",
        "test_compatibility.py",
        "test_cut.py",
        "test_storage.py",
    ],
    "storage/save.py": [
        "test_hook.py",
        "test_compatibility.py",
        "test_security.py",
        "test_sparse_folders.py",
        "test_storage.py",
    ],
    "storage/load.py": [
        "test_hook.py",
        "test_compatibility.py",
        "test_fuzz.py",
        "test_sparse_folders.py",
        "test_storage.py",
        "test_hostile_files.py",
    ],
    "storage/hook.py": ["test_hook.py", "test_compatibility.py", "test_sparse_folders.py", "test_storage.py"],
}
COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
}
TYPES = "albert bart bert bloom clip deberta deberta_v2 distilbert electra gpt2 gpt_neox gptj llama mpnet opt"
TYPES += " modernbert phi phi3 roberta t5 vit wav2vec2 whisper xlm_roberta"
NOTICED, SURVIVED, SLOW = "noticed", "survived", "time limit"


class Places(ast.NodeVisitor):
    """Collects (node, what to do) of everything in a file that a mutant may change."""

    def __init__(self) -> None:
        self.found: list[tuple[ast.AST, str]] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for statement in node.body:
            self.visit(statement)
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Import(self, node: ast.AST) -> None:
        return

    visit_ImportFrom = visit_Import

    def visit_Raise(self, node: ast.Raise) -> None:
        self.found.append((node, "leave out"))  # and its sentence is not changed: no test reads it

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        called = node.value.func if isinstance(node.value, ast.Call) else None
        if isinstance(called, ast.Attribute) and getattr(called.value, "id", "") == "log":
            return
        self.found.append((node, "leave out"))
        self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if getattr(node.test, "id", "") == "TYPE_CHECKING":
            return
        self.found.append((node, "turn round"))
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.found.append((node, "turn round"))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.found.append((node, "leave out"))
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.found.append((node, "return nothing"))
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        if type(node.ops[0]) in COMPARISONS:
            self.found.append((node, "other comparison"))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.found.append((node, "and for or"))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self.found.append((node, "without sign"))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in OPERATORS and not _is_text(node):
            self.found.append((node, "other operator"))
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        return

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.found.append((node, "other truth"))
        elif isinstance(node.value, (int, float)):
            self.found.append((node, "next number"))
        elif isinstance(node.value, str) and node.value and " " not in node.value:
            self.found.append((node, "other text"))


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and type(s.value) is str) for s in sides
    )


def places(tree: ast.Module) -> list[tuple[ast.AST, str]]:
    """Return all places of a file, in a fixed order."""
    visitor = Places()
    visitor.visit(tree)
    return visitor.found


def mutate(source: str, number: int) -> tuple[ast.Module, str]:
    """Return the tree with place `number` changed, and a line that says where and how."""
    tree = ast.parse(source)
    node, how = places(tree)[number]
    line: int = node.lineno  # type: ignore[attr-defined]
    before = ast.unparse(node).splitlines()[0]
    new = _changed(copy.deepcopy(node), how)

    class Replace(ast.NodeTransformer):
        def visit(self, seen: ast.AST) -> Any:
            return ast.copy_location(new, seen) if seen is node else self.generic_visit(seen)

    changed = ast.fix_missing_locations(Replace().visit(tree))
    return changed, f"{line}: {how}: {before[:100]} -> {ast.unparse(new).splitlines()[0][:100]}"


def _changed(node: Any, how: str) -> ast.AST:
    if how == "leave out":
        return ast.Pass()
    if how == "turn round":
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif how == "return nothing":
        node.value = ast.Constant(None)
    elif how == "other comparison":
        node.ops[0] = COMPARISONS[type(node.ops[0])]()
    elif how == "and for or":
        node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
    elif how == "without sign":
        return node.operand
    elif how == "other operator":
        node.op = OPERATORS[type(node.op)]()
    elif how == "other truth":
        node.value = not node.value
    elif how == "next number":
        node.value = node.value + 1
    else:
        node.value = node.value + "x"
    return node


class Mutant(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a changed tree instead of the file of one module."""

    def __init__(self, module: str, path: Path, tree: ast.Module):
        self.module, self.path, self.tree = module, path, tree

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.module:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=str(self.path))

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        module.__file__ = str(self.path)
        exec(compile(self.tree, str(self.path), "exec"), vars(module))


def test_mutant(file: str, tree: ast.Module, limit: float) -> str:
    """Run the tests of a file in a child that imports the mutant."""
    child = os.fork()
    if not child:
        code = 1
        try:
            import pytest

            hidden = os.open(os.devnull, os.O_WRONLY)
            os.dup2(hidden, 1)
            os.dup2(hidden, 2)
            os.setpgid(0, 0)
            module = "espalier." + file.removesuffix(".py").replace("/", ".")
            sys.meta_path.insert(0, Mutant(module, SOURCE / file, tree))
            tests = [str(ROOT / "tests" / name) for name in FILES[file] if (ROOT / "tests" / name).exists()]
            code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))
        except BaseException:
            code = 1
        finally:
            os._exit(code)
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return SURVIVED if status == 0 else NOTICED
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return SLOW


def draw(mutants: int, seed: int, files: list[str]) -> Iterator[tuple[str, int]]:
    """Yield (file, place) of as many mutants, in a drawn order: any beginning of it is a sample too."""
    every = [
        (file, i) for file in files for i in range(len(places(ast.parse((SOURCE / file).read_text("utf-8")))))
    ]
    random.Random(seed).shuffle(every)
    yield from every[:mutants]


def main() -> None:
    """Test mutants until the time is over, and print the share that was noticed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", nargs="*", help="beginnings of their names")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--limit", type=float, default=300, help="seconds for the tests of one mutant")
    parser.add_argument("--state", type=Path, default=Path("mutation.json"))
    parser.add_argument("--again", action="store_true", help="test only those that survived")
    asked = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import hypothesis  # noqa: F401  imported here, once, and not by every child
    import pytest  # noqa: F401
    import torch
    import transformers.modeling_utils
    import transformers.quantizers.auto
    import transformers.trainer

    for file in Path(transformers.__file__).parent.glob("models/*/modeling_*.py"):
        if file.parent.name in TYPES.split():
            importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}")
    torch.set_num_threads(1)
    sys.path[:0] = [str(SOURCE.parent), str(ROOT / "tests"), str(ROOT)]
    end = time.monotonic() + 60 * asked.minutes
    state = json.loads(asked.state.read_text()) if asked.state.exists() else {}
    files = [f for f in FILES if (SOURCE / f).exists() and f.startswith(tuple(asked.files or [""]))]
    for file, number in draw(asked.mutants, asked.seed, files):
        tree, where = mutate((SOURCE / file).read_text("utf-8"), number)
        key = f"{file}:{where}"
        if state.get(key) == NOTICED or (key in state and not asked.again):
            continue
        if time.monotonic() > end:
            break
        state[key] = test_mutant(file, tree, asked.limit)
        if state[key] != NOTICED:
            print(state[key], key, flush=True)
        asked.state.write_text(json.dumps(state, indent=1) + "\n")
    print(table(state))


def table(state: dict[str, str]) -> str:
    """Return the counts as a Markdown table; a mutant that runs into the time limit is not noticed."""
    counts: dict[str, Counter[str]] = {}
    for key, end in state.items():
        counts.setdefault(key.partition(":")[0], Counter())[end] += 1
    counts["all"] = sum(counts.values(), Counter())
    lines = ["| file | mutants | noticed | time limit | survived | share |", "|---|---|---|---|---|---|"]
    for file, c in counts.items():
        share = c[NOTICED] / c.total() if c.total() else 1
        lines.append(f"| {file} | {c.total()} | {c[NOTICED]} | {c[SLOW]} | {c[SURVIVED]} | {share:.1%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
