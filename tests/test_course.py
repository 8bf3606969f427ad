"""Every lesson of the course runs, draws a figure, and has three exercises with solutions."""

import re
import runpy
import sys
from pathlib import Path

import pytest

COURSE = Path(__file__).parents[1] / "docs" / "course"
LESSONS = sorted(COURSE.glob("[0-9]*.py"))


@pytest.fixture(scope="module", autouse=True)
def drawn():
    """Figures are drawn and not shown; lessons find the module that they share."""
    import matplotlib

    matplotlib.use("Agg")
    sys.path.insert(0, str(COURSE))
    yield
    sys.path.remove(str(COURSE))


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_a_lesson_runs(lesson):
    from matplotlib import pyplot as plt

    plt.close("all")
    runpy.run_path(str(lesson), run_name="lesson")
    assert plt.get_fignums()


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_a_lesson_has_exercises_and_as_many_solutions(lesson):
    text = lesson.read_text(encoding="utf-8")
    tasks, solutions = text.split("## Exercises")[1].split("## Solutions")
    assert len(re.findall(r"^# \d\. ", tasks, re.MULTILINE)) == 3
    assert len(re.findall(r"^# %%$", solutions, re.MULTILINE)) >= 3
    assert len(re.findall(r"^plt\.show\(\)$", text, re.MULTILINE)) == 1
