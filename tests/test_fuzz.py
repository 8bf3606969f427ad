"""Damaged input of every format; `benchmarks/fuzz.py` tries a million, and what once failed is kept here."""

import gzip
import json
import string
from pathlib import Path

import pytest
from benchmarks import fuzz
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from espalier import EspalierError, Plan

KEPT = Path(__file__).parent / "data/fuzz"
QUICK = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(string.printable, max_size=8),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=4), inside, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    place = tmp_path_factory.mktemp("fuzz")
    forms = {form.name: form for form in fuzz.formats(place)}
    paths = {name: fuzz.prepare(form, place / f"read-{i}") for i, (name, form) in enumerate(forms.items())}
    return {name: (form, paths[name]) for name, form in forms.items()}


def try_input(known, name, data):
    form, path = known[name]
    return fuzz.try_input(form, data, path)


def test_what_is_not_damaged_loads(known):
    ends = {name: try_input(known, name, base) for name in known for base in known[name][0].bases}
    assert set(ends.values()) == {("loaded", "")}, ends


@pytest.mark.parametrize(
    "file", sorted(KEPT.glob("*/*.gz")), ids=lambda file: f"{file.parent.name}-{file.stem}"
)
def test_what_once_failed(known, file):
    assert try_input(known, file.parent.name, gzip.decompress(file.read_bytes()))[0] in fuzz.GOOD


def test_new_damage_of_every_format(known):
    """The next inputs of every format, in proportion to what one costs."""
    wrong = {}
    for name, (form, _) in known.items():
        for number in range(1, 2 + round(form.share / 3)):
            outcome = try_input(known, name, fuzz.make_input(form, 12, number))
            if outcome[0] not in fuzz.GOOD:
                wrong[name, number] = outcome
    assert not wrong


@QUICK
@given(
    runs=st.text("0123456789-,٣_ ", max_size=8),
    units=st.integers(-2, 40) | st.floats() | st.booleans() | st.text(),
)
def test_plans_of_any_runs(tmp_path_factory, runs, units):
    path = tmp_path_factory.getbasetemp() / "plan.json"
    data = json.dumps({"version": 1, "keep": {"a": runs}, "units": {"a": units}, "origin": {}}).encode()
    path.write_bytes(data)
    try:
        plan = Plan.load(path)
    except EspalierError:
        return
    assert fuzz.judge_plan(data, plan) is None
    plan.save(path)
    assert Plan.load(path) == plan


@QUICK
@given(entry=st.sampled_from(sorted(fuzz.a_run()[0])), value=VALUES)
def test_manifests_with_any_value(known, entry, value):
    made = {**fuzz.a_run()[0], entry: value}
    assert try_input(known, "manifests", json.dumps(made).encode())[0] in fuzz.GOOD


@QUICK
@given(line=st.integers(0, 8), entry=st.sampled_from(sorted(fuzz.a_run()[1][0])), value=VALUES)
def test_rows_with_any_value(known, line, entry, value):
    rows = fuzz.a_run()[1]
    rows[line] = {**rows[line], entry: value}
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    assert try_input(known, "rows", data)[0] in fuzz.GOOD


@QUICK
@given(
    data=st.binary(max_size=64),
    name=st.sampled_from(["plans", "manifests", "rows", "recipes", "sparse files"]),
)
def test_files_of_any_bytes(known, name, data):
    assert try_input(known, name, data)[0] in fuzz.GOOD


@QUICK
@given(
    cells=st.lists(
        st.lists(st.text("ab01\"'\t,\r\n ;é\0", max_size=4), min_size=1, max_size=4), min_size=2, max_size=6
    )
)
def test_tables_of_any_cells(known, cells):
    for name, separator in (("tables.tsv", "\t"), ("tables.csv", ",")):
        text = "text" + separator + "label\n" + "\n".join(separator.join(row) for row in cells) + "\n"
        assert try_input(known, name, text.encode())[0] in fuzz.GOOD, text
