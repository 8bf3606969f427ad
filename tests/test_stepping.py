"""step=auto: fewer scorings, the same way to the last head, and a run that goes on as it would have."""

import pytest
import toys

from espalier import EspalierError
from espalier.analysis.results import read_run
from espalier.experiment import compare, parse
from espalier.io.rows import read_rows
from espalier.reports.captions import levels
from espalier.selection.pace import Pace


def order_of(n):
    return [(i, 0) for i in range(n)]


def test_a_steady_order_doubles_the_step_up_to_a_quarter_of_the_living():
    pace, living, steps = Pace(), order_of(100), []
    while living:
        step = pace.of(living)
        steps.append(step)
        living = living[step:]
    assert steps[:6] == [1, 2, 4, 8, 16, 17]
    assert steps[-3:] == [1, 1, 1]
    assert sum(steps) == 100


def test_an_order_that_changes_halves_it():
    pace = Pace(8, order_of(16))
    assert pace.of(order_of(100)[50:]) == 4
    assert pace.expected == order_of(100)[54:62]
    half = order_of(100)[54:58] + order_of(100)[90:]
    assert pace.of(half * 4) == 4  # half of what was expected is there: as before


def test_a_pace_survives_a_file():
    pace = Pace(4, order_of(3))
    assert Pace.from_dict(pace.to_dict()) == pace
    assert Pace.from_dict(None) == Pace()


def test_it_goes_to_the_last_head_in_fewer_steps(tmp_path):
    bench = toys.toy_bench()
    compare(bench, parse("gnorm,gnorm:step=auto"), tmp_path, tested=False)
    rows = read_rows(tmp_path / "rows.jsonl")
    plain = [row for row in rows if row["strategy"] == "gnorm"]
    auto = [row for row in rows if row["strategy"] == "gnorm:step=auto"]
    assert sum(len(row["cut"]) for row in auto) == sum(len(row["cut"]) for row in plain) == 18
    assert [row["k"] for row in auto] == sorted({row["k"] for row in auto})
    assert len(auto) < len(plain)
    assert auto[0]["cut"] == plain[0]["cut"]


def test_a_stopped_run_goes_on_at_its_pace(tmp_path):
    bench, asked = toys.toy_bench(), parse("taylor:step=auto:reverse")
    compare(bench, asked, tmp_path / "whole", tested=False)
    whole = read_rows(tmp_path / "whole" / "rows.jsonl")
    compare(bench, asked, tmp_path / "parts", tested=False)
    path = tmp_path / "parts" / "rows.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for kept in range(1, len(lines)):
        path.write_bytes(b"".join(lines[:kept]))
        compare(bench, asked, tmp_path / "parts", tested=False)
        again = read_rows(path)
        for row in (*again, *whole):
            row.pop("seconds", None)
        assert again == whole


def test_it_stops_where_it_is_told(tmp_path):
    compare(toys.toy_bench(), parse("gnorm:step=auto"), tmp_path, keep=0.5, tested=False)
    assert read_rows(tmp_path / "rows.jsonl")[-1]["k"] == 9


def test_a_run_at_its_own_pace_is_tested_and_reported(tmp_path):
    """run.json says auto where others have a number."""
    compare(toys.toy_bench(), parse("gnorm:step=auto,gnorm:step=3"), tmp_path)
    rows, found = read_rows(tmp_path / "rows.jsonl"), read_run(tmp_path)
    assert [r["strategy"] for r in rows if r["split"] == "test"][1:] == found.labels
    assert found.steps == {"gnorm:step=auto": "auto", "gnorm:step=3": 3}
    said = levels(found)
    assert "gnorm:step=3 measured after every 3 heads" in said
    seen = len(found.curves["gnorm:step=auto"].removed) - 1
    assert f"gnorm:step=auto scored and measured {seen} times, at steps of its own" in said


def test_what_scores_once_has_no_pace():
    static, random = parse("gnorm:static,random:2", step="auto")
    assert static.step == random.step == 1
    assert parse("gnorm", every=4, step="auto")[0].every is None
    with pytest.raises(EspalierError, match="whole number"):
        parse("gnorm:step=fast")
