"""Which folder may import which: one direction only, and nothing heavy before it is needed."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import espalier

PACKAGE = Path(espalier.__file__).parent
MOST_LINES = 300

TO_ENGINE = "core io selection architectures engine"
TO_STORAGE = f"{TO_ENGINE} tasks evaluation criteria pruning tokens skips storage"
TO_REPORTS = f"{TO_STORAGE} training exporters analysis experiment reports"
# folder -> the folders it may import besides itself, also inside functions and for types
MAY = {
    "core": "",
    "io": "core",
    "selection": "core",
    "architectures": "core io selection",
    "models": "core",
    "engine": "core io selection architectures",
    "tasks": TO_ENGINE,
    "evaluation": f"{TO_ENGINE} tasks",
    "criteria": TO_ENGINE,
    "pruning": f"{TO_ENGINE} tasks evaluation criteria",
    "tokens": f"{TO_ENGINE} tasks evaluation criteria pruning",
    "skips": f"{TO_ENGINE} tasks evaluation criteria pruning tokens",
    "storage": f"{TO_ENGINE} tasks evaluation criteria pruning tokens",
    "convnets": "core io selection architectures engine pruning",
    "training": TO_STORAGE,
    "exporters": TO_STORAGE,
    "analysis": "core io selection evaluation",
    "experiment": f"{TO_STORAGE} training exporters analysis",
    "reports": f"{TO_STORAGE} analysis experiment",
    "reproductions": TO_REPORTS,
    "testing": TO_REPORTS,
    "api": f"{TO_REPORTS} reproductions",
    "cli": f"{TO_REPORTS} reproductions testing api",
}
NOUNS = {"encoding", "pooling", "slimming"}
NOT_NOUNS = {"utils", "util", "common", "helpers", "helper", "base", "misc"}


def files():
    return sorted(PACKAGE.rglob("*.py"))


def module_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in files()}


def nodes(tree, *, types):
    """Yield every node of a file, or those that are not inside `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if types or not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield node
            yield from nodes(node, types=types)


def imported(path, *, types=True):
    """Return the modules of this package that a file imports, lazily or not."""
    package = path.relative_to(PACKAGE).parent.parts
    found = set()
    for node in nodes(ast.parse(path.read_text(encoding="utf-8")), types=types):
        if not isinstance(node, ast.ImportFrom):
            continue
        parts = (node.module or "").split(".")
        if node.level:
            parts = [*package[: len(package) - node.level + 1], *parts]
        elif parts.pop(0) != "espalier":
            continue
        home = ".".join(filter(None, parts))
        names = {alias.name: f"{home}.{alias.name}".strip(".") for alias in node.names}
        found |= {name if name in MODULES else home for name in names.values()}
    return found - {module_of(path), ""}


def folder_of(module):
    return module.partition(".")[0]


@pytest.mark.parametrize("module", [m for m in MODULES if m not in ("", "__main__")])
def test_imports_go_one_way(module):
    folder = folder_of(module)
    assert folder in MAY, f"add {folder} to the table in tests/test_imports.py"
    others = {folder_of(other) for other in imported(MODULES[module])} - {folder}
    assert not others - set(MAY[folder].split())


def test_no_import_cycle_between_modules():
    """Imports for types alone may go in a circle inside a folder: they never run."""
    list(
        TopologicalSorter({m: imported(path, types=False) for m, path in MODULES.items() if m}).static_order()
    )


def test_the_table_has_no_cycle():
    list(TopologicalSorter({folder: may.split() for folder, may in MAY.items()}).static_order())
    assert set(MAY) == {folder_of(module) for module in MODULES} - {"", "__main__"}


def test_files_are_short_and_named_by_nouns():
    assert {path.name for path in PACKAGE.glob("*.py")} <= {"__init__.py", "__main__.py", "api.py"}
    lines = {str(path.relative_to(PACKAGE)): path.read_text("utf-8").count("\n") for path in files()}
    assert not {name: count for name, count in lines.items() if count > MOST_LINES}
    words = {word for path in files() for word in path.stem.split("_")}
    assert not {word for word in words if word.endswith("ing")} - NOUNS
    assert not words & NOT_NOUNS


def test_no_module_imports_transformers_at_the_top():
    """Except classes that are derived from its own: nothing imports those before it is there."""
    for path in files():
        derived = path.parent.name == "models" or path.name == "trainer_callback.py"
        if derived and path.name != "registration.py":
            continue
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


def test_every_public_name_exists():
    for name in espalier.__all__:
        assert getattr(espalier, name) is not None


def test_the_loader_is_registered_whichever_is_imported_first():
    for first, second in (("espalier", "transformers"), ("transformers.quantizers.auto", "espalier")):
        code = (
            f"import {first}, {second}\n"
            "from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING\n"
            "assert 'espalier' in AUTO_QUANTIZER_MAPPING\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_our_models_are_registered_whichever_is_imported_first():
    for first in ("espalier", "transformers.models.auto.modeling_auto", "transformers.generation.utils"):
        code = (
            f"import {first}, espalier\n"
            "from transformers import AutoConfig, AutoModelForCausalLM\n"
            "for name in ('all_attention', 'transformer_xl'):\n"
            "    config = AutoConfig.for_model(name, cutoffs=[])\n"
            "    assert type(config) in AutoModelForCausalLM._model_mapping\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_nothing_unpickles():
    for path in files():
        text = path.read_text(encoding="utf-8")
        assert "torch.load(" not in text
        assert "import pickle" not in text
