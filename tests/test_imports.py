"""Who may import whom: one direction only, and nothing heavy before it is needed."""

import ast
import subprocess
import sys
from pathlib import Path

import espalier

PACKAGE = Path(espalier.__file__).parent

# module -> the modules of the package it may import at all, also inside functions
MAY = {
    "errors": set(),
    "skeleton": set(),
    "processes": {"errors"},
    "core": {"errors", "processes"},
    "replay": set(),
    "precision": {"errors", "processes"},
    "firsttoken": {"architecture"},
    "sweep": {"core", "firsttoken"},
    "layout": {"errors"},
    "encodings": {"encodings", "errors"},
    "pyfile": {"errors"},
    "site": {"errors", "layout", "architecture"},  # the last for its types only
    "architecture": {"errors", "architectures", "layout", "pyfile", "site"},
    "architectures": {"architecture", "architectures"},
    "guess": set(),
    "measure": {"architecture"},
    "support": {"architecture"},
    "probe": {"architecture", "core", "errors"},
    "selection": {"core", "errors"},
    "schedules": {"errors"},
    "curves": {"errors"},
    "shrinking": {"architecture", "core", "probe", "surgery"},
    "pruning": {"core", "selection", "shrinking"},
    "gradnorms": {"core", "errors", "sweep"},
    "gategrads": {"core", "sweep"},
    "readings": {"core", "errors"},
    "slopes": {"core", "errors", "sweep"},
    "hessians": {"core", "errors", "readings"},
    "compensation": {"core", "errors", "hessians", "probe", "readings", "selection", "surgery"},
    "criteria": {
        "probe",
        "core",
        "errors",
        "criteria",
        "gategrads",
        "gradnorms",
        "hessians",
        "pyfile",
        "readings",
        "selection",
        "slopes",
    },
    "tasks": {"errors", "pyfile", "tasks"},
    "batching": {"core", "errors", "tasks"},
    "metrics": {"errors"},
    "evaluation": {"core", "firsttoken", "metrics", "probe", "processes"},
    "latency": {"core", "probe"},
    "workbench": {
        "architecture",
        "batching",
        "core",
        "errors",
        "evaluation",
        "fingerprint",
        "jsonfile",
        "precision",
        "replay",
        "sources",
        "tasks",
    },
    "assessment": {"architecture", "evaluation", "measure", "results", "workbench"},
    "lottery": {"core", "errors", "selection", "training"},
    "training": {
        "",
        "architecture",
        "batching",
        "core",
        "errors",
        "fingerprint",
        "jsonfile",
        "placing",
        "rows",
        "schedules",
        "selection",
        "store",
        "tasks",
        "training",
    },
    "recipes": {"architecture", "errors", "measure", "recipes", "tasks"},
    "diagnosis": {"architecture", "core", "diagnosis", "errors", "gradnorms", "probe"},
    "fingerprint": set(),
    "jsonfile": {"errors"},
    "rows": {"errors"},
    "results": {"curves", "errors", "jsonfile", "metrics", "recipes", "results", "rows"},
    "report": {"curves", "errors", "report", "results"},
    "experiment": {
        "",
        "core",
        "criteria",
        "errors",
        "evaluation",
        "experiment",
        "jsonfile",
        "measure",
        "metrics",
        "probe",
        "processes",
        "pruning",
        "replay",
        "results",
        "rows",
        "selection",
        "shrinking",
        "workbench",
    },
    "sparsity_study": {
        "compensation",
        "core",
        "criteria",
        "readings",
        "encodings",
        "errors",
        "evaluation",
        "experiment",
        "jsonfile",
        "measure",
        "results",
        "rows",
        "selection",
        "sparse_files",
        "sparsity_study",
        "surgery",
        "training",
        "workbench",
    },
    "surgery": {"architecture", "core", "errors", "layout", "measure", "site", "skeleton"},
    "sources": {"errors", "skeleton"},
    "int8": set(),
    "leftovers": set(),
    "placing": {"errors", "leftovers"},
    "safefile": {"errors", "leftovers"},
    "sparse_files": {"encodings", "errors", "int8", "safefile"},
    "sparse_folder": {
        "core",
        "encodings",
        "errors",
        "placing",
        "safefile",
        "site",
        "skeleton",
        "sparse_files",
    },
    "store": {
        "",
        "architecture",
        "core",
        "errors",
        "layout",
        "leftovers",
        "placing",
        "skeleton",
        "sources",
        "sparse_folder",
        "surgery",
    },
    "recoding": {
        "core",
        "encodings",
        "errors",
        "placing",
        "safefile",
        "skeleton",
        "sources",
        "sparse_files",
        "sparse_folder",
        "store",
    },
    "plain": {"architecture", "errors", "layout", "placing", "store", "surgery"},
    "specimens": {"architecture", "core", "site"},
    "contract": {
        "architecture",
        "core",
        "errors",
        "measure",
        "probe",
        "selection",
        "site",
        "specimens",
        "store",
        "surgery",
    },
}


def imported(path):
    """The names of this package's modules that a file imports."""
    inside = path.parent != PACKAGE
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            home = node.module.partition(".")[0] if node.module else ""
            if inside and node.level == 1:
                yield path.parent.name
            elif home:
                yield home
            else:
                for alias in node.names:
                    yield (
                        alias.name
                        if (PACKAGE / alias.name).exists() or (PACKAGE / f"{alias.name}.py").exists()
                        else ""
                    )


def test_imports_go_one_way():
    for path in PACKAGE.rglob("*.py"):
        name = path.parent.name if path.parent != PACKAGE else path.stem
        if name in ("cli", "__init__", "__main__"):
            continue  # the command line and the front door see everything
        assert name in MAY, f"{path.name}: say in tests/test_imports.py what it may import"
        wrong = set(imported(path)) - MAY[name]
        assert not wrong, f"{path.name} imports {', '.join(sorted(wrong))}"


def test_no_module_imports_transformers_at_the_top():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(n.partition(".")[0] == "transformers" for n in names), path.name


def test_importing_espalier_and_asking_for_help_import_nothing_heavy():
    """Half a second is a matter of not importing torch (one) and transformers (another)."""
    code = (
        "import sys, espalier\n"
        "assert not {'torch', 'transformers', 'einops'} & set(sys.modules)\n"
        "sys.argv = ['espalier', '--help']\n"
        "from espalier.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'torch', 'transformers', 'einops'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_loader_is_registered_whichever_comes_first():
    for first, second in (
        ("espalier", "transformers"),
        ("transformers.quantizers.auto", "espalier"),
    ):
        code = (
            f"import {first}, {second}\n"
            "from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING\n"
            "assert 'espalier' in AUTO_QUANTIZER_MAPPING\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_nothing_unpickles():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "torch.load(" not in text
        assert "import pickle" not in text
