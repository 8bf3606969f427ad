"""The command line only spells: verbs cross into the library at few places, and compare visits few files."""

import pytest
from benchmarks import visits


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    return visits.commands(tmp_path_factory.mktemp("visits"))


@pytest.mark.parametrize("verb", ["compare", "prune heads", "prune weights", "score"])
def test_crossings_and_files(verb, commands):
    found = visits.trace_verb(commands[verb])
    assert len(found.crossings) <= visits.MOST_CROSSINGS, sorted(found.crossings)
    if verb == "compare" and len(found.files) > visits.MOST_FILES:
        pytest.xfail(f"compare visits {len(found.files)} files, more than {visits.MOST_FILES}")


def test_a_crossing_is_a_pair_of_functions():
    from espalier.cli.keywords import named

    found = visits.trace(lambda: named("a=1,b=2", "--set"))
    assert (found.files, found.crossings) == ({"cli/keywords.py"}, set())
