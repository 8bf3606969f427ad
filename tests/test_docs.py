"""The code and the commands in the README and the docs run, or at least parse."""

import ast
import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import espalier
from espalier.architectures import support
from espalier.cli import app
from espalier.experiment.prune_vocabulary import OPTIONS as VOCABULARY
from espalier.experiment.prune_weights import TRAINING
from espalier.experiment.session import SessionOptions

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*/README.md"))
LAUNCH = re.compile(r"^(?:OMP_NUM_THREADS=\d+ )?(?:torchrun .*-m |accelerate launch -m )?espalier ")


def read(page):
    return page.read_text(encoding="utf-8")


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", read(page), re.DOTALL | re.MULTILINE)


def commands(page):
    """Every command line in a page, as lists of words; comments, redirections and variables are left out."""
    text = read(page)
    if page.name == "Makefile":
        text = text.replace("\t$(BIN)/", "")
    else:
        text = "\n".join(blocks(page, ""))
    for line in text.replace("\\\n", " ").splitlines():
        if LAUNCH.match(line) and "$" not in line:
            words = shlex.split(LAUNCH.sub("", line), comments=True)
            yield words[: words.index(">")] if ">" in words else words


def find_command(words):
    """The command that some words name, and the words after it."""
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words[0] in command.commands, words
        command, words = command.commands[words[0]], words[1:]
    return command, words


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_every_python_block_runs(page, tmp_path):
    """All blocks of a page, one after the other, in one fresh process."""
    (tmp_path / "page.py").write_text("\n".join(blocks(page, "python")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    if page.name == "README.md":
        logged = next(line for line in read(page).splitlines() if line.startswith("heads 72"))
        assert logged in done.stderr
        assert "[0, 1, 4, 5, 6, 7, 8, 9, 10, 11]" in done.stdout


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "py")], ids=lambda p: p.name)
def test_longer_examples_call_what_exists(page):
    """Blocks marked `py` would train for minutes: their calls are bound to the signatures instead."""
    allowed = {*SessionOptions.__annotations__, *TRAINING, *VOCABULARY}
    for block in blocks(page, "py"):
        for call in (node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "espalier":
                signature = inspect.signature(getattr(espalier, call.func.attr))
                named = {word.arg: None for word in call.keywords}
                signature.bind(*call.args, **named)
                assert set(named) <= {*signature.parameters, *allowed}, ast.unparse(call)


@pytest.mark.parametrize("page", [*PAGES, *RESULTS, ROOT / "Makefile"], ids=lambda p: p.name)
def test_every_command_parses(page):
    for words in commands(page):
        command, rest = find_command(words)
        command.make_context(words[0], list(rest))
    for line in re.findall(r"`espalier ([a-z][^`]*)`", read(page)):
        command, rest = find_command(shlex.split(line))
        known = {flag for parameter in command.params for flag in parameter.opts}
        assert {word for word in rest if word.startswith("-")} <= known, line


def test_the_support_tables_are_fresh():
    assert read(ROOT / "docs" / "support.md") == support.markdown(), "run: make docs"
    readme = read(ROOT / "README.md")
    assert support.between_marks(readme) == readme, "run: make docs"


def test_every_link_leads_somewhere():
    for page in [*PAGES, *RESULTS, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", read(page)):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_versions_agree():
    assert f"version: {espalier.__version__}" in read(ROOT / "CITATION.cff")
    assert f"## {espalier.__version__}" in read(ROOT / "CHANGELOG.md")


def test_every_public_name_is_documented():
    text = "\n".join(map(read, PAGES))
    for name in espalier.__all__:
        assert getattr(espalier, name).__doc__, name
        assert re.search(rf"\b{name}\b", text), name
    assert not hasattr(espalier, "nothing")


def test_every_folder_is_described():
    table = read(ROOT / "CONTRIBUTING.md").split("## Where things are")[1]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert set(listed) == {init.parent.name for init in Path(espalier.__file__).parent.glob("*/__init__.py")}


def test_every_test_that_the_lecture_names_exists_and_every_place_too():
    text = read(ROOT / "docs" / "lecture.md")
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", text)
    assert len(named) > 60
    for file, name in named:
        assert re.search(rf"^def {name}\(", read(ROOT / "tests" / file), re.MULTILINE), (file, name)
    rows = re.findall(r"^\| (\d+) \| .*? \| (`[^|]+) \| (?:`test_|measured)", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 45))
    for _, places in rows:
        for place in re.findall(r"`([\w/.]+)`", places):
            assert (ROOT / place).exists() or (ROOT / "src" / "espalier" / place).exists(), place
