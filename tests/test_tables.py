"""Tables: the numbers of older reports, text that cannot break out, columns without content left out."""

import csv
from pathlib import Path

import pytest
from benchmarks.compare_tables import PLACE, compare_weights

from espalier.analysis import read_run
from espalier.analysis.curves import GRADUAL, ONE_SHOT, RECOVERED
from espalier.reports import Report, Table

STUDY = PLACE / "sparsity" / "small"
OLD = Path(__file__).parent / "data" / "small_study_v1"  # made by the reports of version 1


@pytest.fixture(scope="module")
def study():
    return Report([read_run(STUDY)])


def test_a_study_has_the_numbers_that_it_had():
    old = {name: list(csv.DictReader((OLD / f"{name}.csv").open())) for name in ("levels", "rules", "pairs")}
    checked = list(compare_weights(STUDY, old))
    assert [f"{what}: {difference}" for what, difference in checked if difference] == []
    assert len(checked) == 232


def test_a_study_of_weights(study):
    assert study.tolerance == 0.01
    assert set(study.sheets) == {"rows", "summary", "by_level", "pairs", "points"}
    phases = [(row["method"], row["phase"]) for row in study.sheets["summary"]]
    assert phases == [
        ("movement", GRADUAL),
        ("magnitude", ONE_SHOT),
        ("magnitude", RECOVERED),
        ("magnitude", GRADUAL),
    ]
    schedules = {(row["phase"], row["schedule"]) for row in study.sheets["by_level"]}
    assert schedules == {(ONE_SHOT, None), (RECOVERED, None), (GRADUAL, "cubic")}
    bases = [row for row in study.sheets["by_level"] if row["method"] == "base"]
    assert [(row["phase"], row["change"]) for row in bases] == [
        (ONE_SHOT, 0.0),
        (RECOVERED, pytest.approx(-0.02178899)),
    ]


def test_tables_of_weights_show_percent(study):
    summary, levels, sizes, pairs = study.tables()
    assert [row["removed"] for row in summary.rows] == ["≥ 90 %", "≥ 90 %", "0 %", "0 %"]
    assert levels.columns == ["method", "phase", "70 %", "90 %"]
    assert [row["whole model"] for row in sizes.rows] == ["1.07×", "1.09×"]
    assert [row["pruned matrices"] for row in sizes.rows] == ["3.33×", "10.00×"]
    assert pairs.columns[:1] + pairs.columns[3:5] == ["a − b", "70 %", "90 %"]
    assert "MACs" not in sizes.columns


def test_a_column_without_content_is_left_out():
    table = Table([{"a": "1", "b": ""}, {"a": "2", "c": "3"}], title="t", caption="c")
    assert table.columns == ["a", "c"]
    assert table.rows == [{"a": "1", "c": ""}, {"a": "2", "c": "3"}]
    assert table.to_text().splitlines() == ["t", "a  c", "─  ─", "1", "2  3", "c"]
    assert table.to_markdown() == "### t\n\n| a | c |\n|---|---|\n| 1 |  |\n| 2 | 3 |\n\nc.\n"
    assert Table([]).to_text() == ""
    assert Table([]).rows == []


def test_text_cannot_break_out_of_a_table():
    evil = "<script>|`x`](y)\nz"
    table = Table([{evil: evil}], title=evil, caption=evil)
    assert "<script>" not in table.to_html()
    assert table.to_html().count("&lt;script&gt;") == 4
    lines = [line for line in table.to_markdown().splitlines() if line.startswith("|")]
    assert len(lines) == 3
    assert all(line.endswith("|") for line in lines)
    assert r"\<script\>\|\`x\`]\(y)\\u000az" in lines[0]
