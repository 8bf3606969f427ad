"""The command line only spells: every verb crosses into the library at few places."""

import pytest
from benchmarks import visits


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    return visits.commands(tmp_path_factory.mktemp("visits"))


@pytest.mark.parametrize("verb", ["compare", "prune heads", "prune weights", "score"])
def test_crossings(verb, commands):
    found = visits.trace_verb(commands[verb])
    assert len(found.crossings) <= visits.MOST_CROSSINGS, sorted(found.crossings)
    if verb == "compare":
        assert len(found.files) <= visits.MOST_FILES, sorted(found.files)
        assert "reports/tables.py" in found.report - found.files


def test_a_crossing_is_a_pair_of_functions():
    from espalier.cli.app import named

    found = visits.trace(lambda: named("a=1,b=2", "--set"))
    assert (found.files, found.crossings) == ({"cli/app.py"}, set())
