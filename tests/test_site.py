"""The site: built without a warning, so no link is dead; every page can be reached and searched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(place)]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def test_every_page_is_part_of_it(site):
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
    assert not {page for page in pages if not (site / page / "index.html").is_file()}
    assert (site / "course" / "01_cost" / "index.html").is_file()
    assert (site / "results" / "trust" / "index.html").is_file()
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert not {page for page in pages if f": {page}.md" not in navigation}


def test_it_can_be_searched_and_loads_nothing_from_elsewhere(site):
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert any("least squares" in page["text"] for page in found["docs"])
    assert "https://fonts" not in (site / "index.html").read_text(encoding="utf-8")


def test_the_reference_has_every_verb(site):
    page = (site / "reference" / "index.html").read_text(encoding="utf-8")
    assert not [
        verb for verb in ("train", "compare", "prune", "recover") if f"espalier.api.{verb}" not in page
    ]


def test_examples_are_code_and_links_have_titles(site):
    page = (site / "reference" / "index.html").read_text(encoding="utf-8")
    assert "<blockquote>" not in page
    assert "&gt;&gt;&gt;" not in page
    start = (site / "index.html").read_text(encoding="utf-8")
    assert ">budgets.md</a>" not in start
    assert ">Smaller to a budget</a>" in start
