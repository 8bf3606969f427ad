"""Runs that were damaged, written by two programs or by a newer version: refused, and left as they are."""

import json

import pytest
import toys

from espalier.core.errors import FormatError
from espalier.experiment.method import parse_methods
from espalier.experiment.prune_units import check_units, prune_units
from espalier.experiment.runner import run_comparison


@pytest.fixture
def short_run(tmp_path):
    return run_comparison(toys.toy_session(), parse_methods("gnorm", "heads"), tmp_path / "r", remove=[0.5])


def again(folder):
    return run_comparison(toys.toy_session(), parse_methods("gnorm", "heads"), folder, remove=[1.0])


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("twice", [3, 6, -1])
def test_rows_that_two_programs_wrote_are_neither_resumed_nor_pruned_by(short_run, twice):
    lines = (short_run / "rows.jsonl").read_text().splitlines(keepends=True)
    (short_run / "rows.jsonl").write_text("".join([*lines, lines[twice]]))
    before, method = content(short_run), parse_methods("gnorm", "heads")[0]
    with pytest.raises(FormatError) as error:
        again(short_run)
    assert error.value.path == short_run / "rows.jsonl"
    with pytest.raises(FormatError):
        check_units(method, 0.25, None, short_run, None)
    with pytest.raises(FormatError):
        prune_units(toys.toy_session(), method, remove=0.25, run=short_run)
    assert content(short_run) == before


@pytest.mark.parametrize("version", [3, True, None, "2", 2.0])
def test_a_run_of_another_format_is_refused_and_left_as_it_is(short_run, version):
    described = json.loads((short_run / "run.json").read_text())
    (short_run / "run.json").write_text(json.dumps({**described, "version": version}))
    before = content(short_run)
    with pytest.raises(FormatError):
        again(short_run)
    assert content(short_run) == before


@pytest.mark.parametrize("change", [{"version": 3}, {"order": None}, {"removed": "0.5"}, {"phase": "later"}])
def test_a_row_of_another_format_is_refused_and_left_as_it_is(short_run, change):
    rows = [json.loads(line) for line in (short_run / "rows.jsonl").read_text().splitlines()]
    rows[3] |= change
    (short_run / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = content(short_run)
    with pytest.raises(FormatError):
        again(short_run)
    assert content(short_run) == before
