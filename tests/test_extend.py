"""A criterion, an architecture, a figure, a metric or a task is one file, found and tested by being there.

The files go into a copy of the package, put first on the path of another process: the registries are read
as after a clean installation.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import espalier

FILES = {
    "criteria/row_norm.py": '''"""Row norm: the largest squared weight of a unit."""

from . import Scores, criterion


@criterion("heads", "neurons", unit="squared weights")
def row_norm(model, sites, batches, *, power: float = 4.0) -> Scores:
    return Scores({site.name: site.fold(lambda w, _: w.abs() ** power) for site in sites})
''',
    "architectures/families/data2vec.py": '''"""Data2vec for text: RoBERTa's blocks."""

from ..table import Architecture, HeadSpec, NeuronSpec

ARCHITECTURE = Architecture(
    models=("data2vec-text",),
    layers="encoder.layer",
    specs=(
        HeadSpec(
            at="attention.self",
            d="attention_head_size",
            q=".query",
            k=".key",
            v=".value",
            out="attention.output.dense",
            sync={"num_attention_heads": "u", "all_head_size": "u*d"},
        ),
        NeuronSpec(up="intermediate.dense", down="output.dense", config="intermediate_size"),
    ),
)
''',
    "reports/figures/count.py": '''"""Count: how many methods each run compared."""

from .. import style


def draw(results, tolerance, points):
    figure, (axis,) = style.panels([2.0])
    axis.bar([style.plain(one.model) for one in results], [len(one.keys) for one in results])
    return figure
''',
    "evaluation/metrics/error_rate.py": '''"""Error rate: the fraction of wrong classes."""

import numpy as np

from . import metric


@metric("classification", share=True, lower_is_better=True)
def error_rate(truth, predictions) -> float:
    return float(np.mean(np.asarray(truth) != np.asarray(predictions)))
''',
    "tasks/catalogue/parity.py": '''"""Parity: whether a sentence has an even number of words."""

from ..task import Examples, Task
from . import NamedTask


def load_parity(**options):
    def split(word):
        texts = tuple(" ".join([word] * n) for n in range(1, 9))
        return Examples(texts, None, tuple(float(n % 2) for n in range(1, 9)))

    return Task("parity", *map(split, ("red", "green", "blue")), classes=("even", "odd"))


TASKS = {"parity": NamedTask("sentences with an even or odd number of words", load_parity)}
''',
}

LOOK = """
import json, sys
import numpy as np
from espalier import criteria, tasks
from espalier.architectures.table import architectures
from espalier.evaluation import metrics
from espalier.evaluation.predictions import Predictions
from espalier.reports import figures
from espalier.testing import check_architecture, check_criterion

check_criterion("row_norm")
check_architecture("data2vec-text")
error_rate = metrics.load("error_rate")
right = np.array([[0, 1, 1, 1]])
parity = tasks.load("parity")
print(json.dumps({
    "home": criteria.__file__,
    "criteria": criteria.names("neurons"),
    "options": criteria.load("row_norm").options,
    "architectures": sorted(architectures()),
    "figures": figures.names(),
    "metrics": metrics.for_kind("classification"),
    "computed": Predictions(right[0], np.zeros(4)).metrics("classification", np.array([0, 1, 0, 1])),
    "resampled": error_rate.resample(np.array([0, 1, 0, 1]), right, np.ones((1, 4))).tolist(),
    "tasks": tasks.names(),
    "examples": [len(parity.train), len(parity.validation), len(parity.test)],
}))
"""


def run(package, *words):
    """Run Python with the copied package first on its path, from the folder of the tests."""
    environment = {**os.environ, "PYTHONPATH": str(package), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, *words], cwd=root, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A folder with a copy of the package, to which every file of `FILES` was added."""
    folder = tmp_path_factory.mktemp("package")
    source = Path(espalier.__file__).parent
    shutil.copytree(source, folder / "espalier", ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in FILES.items():
        assert not (folder / "espalier" / path).exists()
        (folder / "espalier" / path).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def found(package):
    """What a process sees that imports the copy; it has run the contracts of the criterion and the table."""
    out = json.loads(run(package, "-c", LOOK).splitlines()[-1])
    assert out["home"].startswith(str(package))
    return out


@pytest.fixture(scope="module")
def collected(package):
    """The names of the tests that pytest would run on the copy."""
    files = ("test_check_criterion.py", "test_check_architecture.py", "test_metrics.py")
    paths = [str(Path(__file__).parent / name) for name in files]
    return run(package, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", *paths)


def test_a_criterion_is_found_and_checked(found, collected):
    assert "row_norm" in found["criteria"]
    assert found["options"] == ["power"]
    assert "test_contract[row_norm-leaves_model_unchanged]" in collected


def test_an_architecture_is_found_and_checked(found, collected):
    assert "data2vec-text" in found["architectures"]
    assert "test_contract[data2vec-text-gated_is_cut]" in collected


def test_a_figure_is_found(found):
    assert "count" in found["figures"]


def test_a_figure_is_drawn_in_every_report(package, tmp_path):
    script = f"""
from espalier.analysis.reader import read_run
from espalier.reports import Report
import sys
sys.path.insert(0, "tests")
import toys
from pathlib import Path
from espalier.experiment.method import parse_methods
from espalier.experiment.runner import run_comparison
folder = Path({str(tmp_path)!r})
methods = parse_methods("magnitude", "heads")
run_comparison(toys.toy_session(), methods, folder / "run", remove=[0.5], test=False)
Report([read_run(folder / "run")]).write(folder / "report")
"""
    run(package, "-c", script)
    assert {path.suffix for path in tmp_path.glob("report/*/count.*")} == {".png", ".pdf"}


def test_a_metric_is_found_computed_resampled_and_tested(found, collected):
    assert "error_rate" in found["metrics"]
    assert found["computed"]["error_rate"] == 0.25
    assert found["resampled"] == [[-0.25]]  # a score: higher is better
    assert "[error_rate" in collected


def test_a_task_is_found_and_loaded(found):
    assert "parity" in found["tasks"]
    assert found["examples"] == [8, 8, 8]


def test_files_outside_the_package(tmp_path):
    """A criterion and a table need not be in the package at all."""
    from espalier import criteria, register_architecture
    from espalier.architectures.table import architectures, load_table
    from espalier.testing import check_criterion
    from espalier.testing.architecture import CHECKS

    mine, table = tmp_path / "row_norm.py", tmp_path / "data2vec.py"
    mine.write_text(FILES["criteria/row_norm.py"].replace("from . import", "from espalier.criteria import"))
    check_criterion(mine)
    assert "row_norm" not in criteria.names()
    text = FILES["architectures/families/data2vec.py"]
    table.write_text(text.replace("from ..table import", "from espalier import"))
    try:
        register_architecture(load_table(str(table)))
        CHECKS["gated_is_cut"]("data2vec-text")
    finally:
        architectures().pop("data2vec-text", None)
