"""What the README and the docs say runs, and is true."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import espalier
from espalier.architectures import support

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_every_python_block_runs(page, tmp_path):
    """One after the other in one fresh process, as a reader would type them."""
    (tmp_path / "page.py").write_text("\n".join(blocks(page)), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    if page.name == "README.md":
        said = next(
            line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("heads 72")
        )
        assert said in done.stderr  # what the README shows is what is printed
        assert "[0, 1, 4, 5, 6, 7, 8, 9, 10, 11]" in done.stdout


def test_the_support_tables_are_fresh():
    assert (ROOT / "docs" / "support.md").read_text(encoding="utf-8") == support.markdown(), "type: make docs"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert support.between_marks(readme) == readme, "type: make docs"


def test_every_link_leads_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_versions_agree():
    assert f"version: {espalier.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert f"## {espalier.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_public_name_is_there_and_says_what_it_is():
    for name in espalier.__all__:
        assert getattr(espalier, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        espalier.nothing  # noqa: B018
