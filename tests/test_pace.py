"""step=auto: fewer scorings, the same way to the last head, and a run that resumes at its pace."""

import pytest
import toys

from espalier.analysis.reader import read_run
from espalier.core.errors import InvalidValueError
from espalier.experiment.method import parse_methods
from espalier.experiment.runner import run_comparison
from espalier.io.paths import ROWS
from espalier.io.rows import read_rows
from espalier.selection.pace import Pace, next_step


def order_of(n):
    return [(i, 0) for i in range(n)]


def compare(folder, methods, remove=1.0, session=None, test=False):
    found = parse_methods(methods, "heads")
    run_comparison(session or toys.toy_session(), found, folder, remove=[remove], test=test)
    return read_rows(folder / ROWS)


def test_a_steady_order_doubles_the_step_up_to_a_quarter_of_the_kept_units():
    pace, kept, steps = Pace(), order_of(100), []
    while kept:
        step = pace.of(kept)
        steps.append(step)
        kept = kept[step:]
    assert steps[:6] == [1, 2, 4, 8, 16, 17]
    assert steps[-3:] == [1, 1, 1]
    assert sum(steps) == 100


def test_an_order_that_changes_halves_it():
    pace = Pace(8, order_of(16))
    assert pace.of(order_of(100)[50:]) == 4
    assert pace.expected == order_of(100)[54:62]
    half = order_of(100)[54:58] + order_of(100)[90:]
    assert pace.of(half * 4) == 4  # half of the expected units are there: the step stays
    assert next_step(4, order_of(8), order_of(6) + order_of(20)[10:]) == 8  # three quarters: it doubles


def test_a_pace_is_restored_from_a_row():
    pace = Pace(4, order_of(3))
    assert Pace.from_dict(pace.to_dict()) == pace
    assert Pace.from_dict(None) == Pace()


def test_it_reaches_the_last_head_in_fewer_steps(tmp_path):
    rows = compare(tmp_path, "gnorm,gnorm:step=auto")
    plain = [row for row in rows if row["method"] == "gnorm"]
    auto = [row for row in rows if row["method"] == "gnorm:step=auto"]
    assert sum(len(row["order"]) for row in auto) == sum(len(row["order"]) for row in plain) == 18
    assert [row["removed"] for row in auto] == sorted({row["removed"] for row in auto})
    assert len(auto) < len(plain)
    assert auto[0]["order"] == plain[0]["order"]


def test_a_stopped_run_resumes_at_its_pace(tmp_path):
    session, method = toys.toy_session(), "taylor:step=auto:reverse"
    whole = compare(tmp_path / "whole", method, session=session)
    compare(tmp_path / "parts", method, session=session)
    path = tmp_path / "parts" / ROWS
    lines = path.read_bytes().splitlines(keepends=True)
    for kept in range(1, len(lines)):
        path.write_bytes(b"".join(lines[:kept]))
        again = compare(tmp_path / "parts", method, session=session)
        for row in (*again, *whole):
            row.pop("seconds", None)
        assert again == whole


def test_it_stops_at_the_fraction_asked_for(tmp_path):
    assert compare(tmp_path, "gnorm:step=auto", remove=0.5)[-1]["removed"] == 0.5


def test_a_run_at_its_own_pace_is_tested_and_read(tmp_path):
    rows = compare(tmp_path, "gnorm:step=auto,gnorm:step=3", test=True)
    found = read_run(tmp_path)
    tested = [row["method"] for row in rows if row["split"] == "test"]
    assert tested[1:] == ["gnorm:step=auto", "gnorm:step=3"]
    assert found.steps == {"gnorm:step=auto": "auto", "gnorm:step=3": 3}


def test_methods_that_score_once_have_no_pace():
    static, random = parse_methods("gnorm:static,random:2:static", "heads")
    assert static.step == random.step == 1
    assert parse_methods("gnorm:every=4:step=auto", "heads")[0].every is None
    with pytest.raises(InvalidValueError) as error:
        parse_methods("gnorm:step=fast", "heads")
    assert error.value.parameter == "method"
