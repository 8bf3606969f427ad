"""Tables and figures: right numbers, the same bytes again, text from outside that stays text."""

import csv
import dataclasses
import html
import math
import subprocess
import sys

import numpy as np
import pytest

from espalier.analysis.bootstrap import bootstraps
from espalier.analysis.curves import ONE_SHOT, RECOVERED, Curve
from espalier.analysis.results import BASE_KEY, Cost, Results, SplitPredictions
from espalier.analysis.summary import at_points, by_level, pairs, summarize
from espalier.core.errors import DataError, DependencyError, FolderError, InvalidValueError, UnknownNameError
from espalier.io.spreadsheet import write_book
from espalier.reports import Report, captions, figures, grid, rename_equal, style, text, write_csv
from espalier.reports.captions import hidden

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
HALVES = (0.0, 0.5, 1.0)
ORDERS = {
    "gnorm": [(0, 0), (0, 1), (1, 0), (1, 1)],
    "gnorm:static": [(0, 1), (0, 0), (1, 1), (1, 0)],
    "entropy": [(1, 1), (1, 0), (0, 1), (0, 0)],
}
HITS = {
    "gnorm": (36, 36, 30, 32, 20),
    "gnorm:static": (36, 34, 33, 24, 20),
    "entropy": (36, 28, 26, 22, 20),
}
TRIED = ((36, 34, 20), (36, 36, 20), (36, 26, 20))
GNORM, RANDOM = ("gnorm", ONE_SHOT), ("random:3", ONE_SHOT)


def one_shot(by_method):
    return {(method, ONE_SHOT): value for method, value in by_method.items()}


def predicted(hits, n=40):
    """Predictions of which so many are correct, [1, levels, n]."""
    return np.stack([np.arange(n) >= hit for hit in hits]).astype(np.int16)[None]


def made(model="toy", n=40, **more):
    """A model of 2 × 2 heads, and predictions from which every accuracy follows."""
    truth = np.zeros(n, dtype=np.int16)
    values = {**one_shot({m: predicted(hits) for m, hits in HITS.items()}), BASE_KEY: predicted([36])}
    values[RANDOM] = np.concatenate([predicted(hits) for hits in TRIED])
    removed = {**dict.fromkeys(values, LEVELS), RANDOM: HALVES, BASE_KEY: (0.0,)}
    curves = one_shot({m: Curve(LEVELS, tuple(h / n for h in hits)) for m, hits in HITS.items()})
    curves[RANDOM] = Curve.of_trials(HALVES, [[h / n for h in hits] for hits in TRIED])
    costs = {key: {x: Cost(2**20 - int(2**18 * x), 100 - int(4 * x)) for x in LEVELS} for key in curves}
    tested = {BASE_KEY: predicted([35]), GNORM: predicted([35, 34])}
    return Results(
        **{
            "model": model,
            "metric": "accuracy",
            "units": 4,
            "layers": (2, 2),
            "curves": curves,
            "orders": ORDERS,
            "costs": {BASE_KEY: {0.0: Cost(2**20, 100)}, **costs},
            "predictions": {
                "validation": SplitPredictions(truth, removed, values),
                "test": SplitPredictions(truth, {BASE_KEY: (0.0,), GNORM: (0.0, 0.25)}, tested),
            },
            "test": {BASE_KEY: {0.0: (35 / n,)}, GNORM: {0.25: (34 / n,)}},
            "scores": {"gnorm": np.array([[1.0, np.nan], [2.0, -3.0]])},
            "settings": {"gnorm": {"criterion": "gnorm", "unit": "ln of a product"}},
            "pooling": {(0, 0): {role: np.array([[9.0, 1e-6], [-2e-6, 0]]) for role in "qkv"}},
            **more,
        }
    )


def with_curves(results, by_method, **more):
    """The same model with other curves and without predictions."""
    bare = {"predictions": {}, "test": {}, "orders": {}}
    return dataclasses.replace(results, curves=one_shot(by_method), **{**bare, **more})


def without(results, method):
    return {key: value for key, value in results.curves.items() if key[0] != method}


STRANGE = dataclasses.replace(made("=1+1|<b>$x$", scores={}, pooling={}), curves=without(made(), "random:3"))
PUBLISHED = dataclasses.replace(made("BERT"), predictions={}, test={}, scores={}, pooling={})


def by(rows, **wanted):
    (row,) = [r for r in rows if all(r.get(name) == value for name, value in wanted.items())]
    return row


def summary(results, tolerance=0.01):
    return list(summarize(results, tolerance, bootstraps(results)))


def compared(results):
    return list(pairs(results, bootstraps(results)))


# ------------------------------------------------------------------------------------------ numbers


def test_a_summary_row():
    row = by(summary(made()), method="gnorm")
    assert (row["base"], row["removed"], row["removed units"], row["kept units"]) == (0.9, 0.25, 1, 3)
    assert row["validation low"] < row["validation"] == 0.9 < row["validation high"]
    assert (row["test before"], row["test after"]) == (35 / 40, 34 / 40)
    assert row["test change"] == pytest.approx(-1 / 40)
    assert row["test change low"] < -1 / 40 < row["test change high"] == 0  # one prediction, or none
    assert (row["megabytes before"], row["megabytes after"]) == (4.0, 3.75)
    assert (row["parameters before"], row["macs after"]) == (2**20, 99)
    assert row["compression of model"] == pytest.approx(16 / 15)
    area = (36 / 2 + 36 + 30 + 32 + 20 / 2) / 4 / 40
    assert row["area"] == pytest.approx(area)
    assert row["area low"] < area < row["area high"]
    assert [row[f"removed within {p}"] for p in (1, 2, 5)] == [0.25, 0.25, 0.25]
    mean = (36 / 2 + 32 + 20 / 2) / 2 / 40
    same = (36 / 2 + 30 + 20 / 2) / 2 / 40  # at the levels that both were measured at
    assert row["area over random"] == pytest.approx(same - mean)
    assert row["area over random low"] < same - mean < row["area over random high"]
    assert (row["levels shared"], row["levels above random mean"]) == (2, 0)
    assert (row["levels above all trials"], row["levels below all trials"]) == (0, 0)
    assert row.get("trials") is row["collapse"] is None


def test_the_row_of_random_removal():
    row = by(summary(made(), tolerance=0.1), method="random:3")
    assert (row["removed"], row["trials"]) == (0.5, 3)
    assert row["validation"] == pytest.approx(32 / 40)
    assert (row["validation lowest"], row["validation highest"]) == (26 / 40, 36 / 40)
    assert row["area lowest"] < row["area"] < row["area highest"]
    assert row.get("area over random") is row.get("test after") is None


def test_what_was_not_tested_is_empty():
    rows = summary(made(), tolerance=0.2)  # another point than the one that was tested
    assert by(rows, method="gnorm")["removed"] == 0.75
    assert by(rows, method="gnorm").get("test after") is None
    base = by(summary(made()), method="entropy")  # nothing may be removed: that is the unpruned model
    assert (base["removed"], base["test after"], base["test change"]) == (0, 35 / 40, 0)


def test_without_predictions_there_are_no_intervals():
    for row in summary(PUBLISHED) + compared(PUBLISHED) + list(by_level(PUBLISHED, {})):
        ends = [name for name in row if name.endswith((" low", " high")) or name in ("low", "high")]
        assert all(row[name] is None for name in ends)
    assert {row["verdict"] for row in compared(PUBLISHED)} == {"no interval"}
    assert "[" not in Report([PUBLISHED]).markdown()


def test_by_level():
    rows = list(by_level(made(majority=0.65), {}))
    assert [r["removed units"] for r in rows if r["method"] in ("base", "gnorm")] == [0, 1, 2, 3, 4]
    row = by(rows, method="gnorm", removed=0.5)
    assert (row["value"], row["change"]) == (30 / 40, pytest.approx(-6 / 40))
    assert (row["trials below"], row["collapsed"]) == (pytest.approx(1 / 3), False)
    assert by(rows, method="entropy", removed=0.5)["collapsed"]  # as good as the most frequent class
    assert by(rows, method="gnorm", removed=0.25)["trials below"] is None  # no trial was measured there
    random = by(rows, method="random:3", removed=0.5)
    assert random["value"] == pytest.approx(32 / 40)
    assert (random["lowest trial"], random["highest trial"]) == (26 / 40, 36 / 40)


def test_a_tie_hidden_by_rounding_is_a_tie():
    """Published curves are rounded to nine digits, the trials are not."""
    trials = Curve.of_trials(HALVES, ((1 / 3, 0.2 - 1e-12, 0.1),))
    curve = Curve(HALVES, (0.333333333, 0.2, 0.1))
    rounded = with_curves(made(), {"gnorm": curve, "random:1": trials})
    assert by(summary(rounded), method="gnorm")["levels above random mean"] == 0
    assert {row["trials below"] for row in by_level(rounded, {}) if row["method"] == "gnorm"} == {0}


def test_pairs():
    rows = compared(made())
    areas = [row for row in rows if row["removed"] is None]
    assert [(r["a"], r["b"]) for r in areas] == [
        ("gnorm", "gnorm:static"),
        ("gnorm", "random:3"),
        ("gnorm:static", "random:3"),
        ("entropy", "random:3"),
        ("gnorm", "entropy"),
    ]
    first = areas[0]
    assert first["difference"] == pytest.approx((36 - 34 + 30 - 33 + 32 - 24) / 4 / 40)
    assert first["low"] < first["difference"] < first["high"]
    assert (first["levels"], first["levels a above"], first["levels b above"]) == (4, 2, 1)
    assert by(rows, a="gnorm", b="gnorm:static", removed=0.25)["difference"] == pytest.approx(2 / 40)
    assert [r["removed"] for r in rows if r["b"] == "random:3" and r["a"] == "gnorm"] == [None, 0.5, 1.0]
    assert by(areas, a="gnorm", b="entropy")["verdict"] == "a better"


def test_curves_that_end_elsewhere_are_compared_where_both_are():
    falls_later = Curve(LEVELS, (0.9, 0.9, 0.9, 0.1, 0.1))
    short = with_curves(made(), {"gnorm": Curve((0, 0.5), (0.9, 0.7)), "taylor": falls_later})
    row = by(compared(short), a="gnorm", b="taylor", removed=None)
    assert row["difference"] == pytest.approx(0.8 - 0.9)
    assert row["levels"] == 1


def test_phases_are_compared():
    curve = Curve(HALVES, (0.9, 0.8, 0.7))
    keys = [("a", ONE_SHOT), ("a", RECOVERED), ("b", RECOVERED), ("c", "gradual")]
    results = dataclasses.replace(made(), curves=dict.fromkeys(keys, curve), predictions={})
    found = [
        (r["a"], r["phase of a"], r["b"], r["phase of b"]) for r in compared(results) if not r["removed"]
    ]
    assert found == [
        ("a", RECOVERED, "a", ONE_SHOT),
        ("a", RECOVERED, "b", RECOVERED),
        ("a", RECOVERED, "c", "gradual"),  # the first was not pruned gradually
    ]


def test_points():
    (row,) = at_points([made()], {"toy": 3}, 0.01)
    assert (row["removed units"], row["kept units"], row["base"], row["validation"]) == (3, 1, 0.9, 0.8)
    assert row["relative change"] == pytest.approx(0.8 / 0.9 - 1)
    assert (row["megabytes before"], row["megabytes after"]) == (4.0, 3.25)
    assert row["rule removes"] == 0.25
    assert list(at_points([made()], {"toy": 0.75}, 0.01)) == [row]  # a fraction instead of a count
    for points, kind in (({"toi": 3}, UnknownNameError), ({"toy": 0.6}, InvalidValueError)):
        with pytest.raises(kind):
            list(at_points([made()], points, 0.01))
    with pytest.raises(UnknownNameError) as error:
        Report([made()], points={"toi": 3})
    assert (error.value.parameter, error.value.nearest) == ("points", "toy")
    only = dataclasses.replace(PUBLISHED, curves={RANDOM: PUBLISHED.curves[RANDOM]})
    with pytest.raises(InvalidValueError) as wrong:
        Report([only], points={"BERT": 3})
    assert wrong.value.parameter == "points"


def test_what_is_hidden():
    assert hidden(PUBLISHED, 0.01, {}, point=3) == [
        "BERT: the point 3 lies beyond the 1 that the rule allows: at 2 gnorm is more than 1 point "
        "worse than the unpruned model.",
        "BERT: gnorm falls to 75.00 % at 2 and returns to 80.00 % at 3.",
        "BERT: the mean of random:3 is better on average over the curve (75.00 % against 72.50 %) and is "
        "better than gnorm at 1 of 2 levels (2).",
    ]
    assert any("the same heads as gnorm" in line for line in hidden(PUBLISHED, 0.01, {}, point=2))
    rival = Curve(LEVELS, (0.9, 0.9, 0.895, 0.7, 0.5))
    trials = Curve.of_trials(HALVES, ((0.9, 0.8, 0.6), (0.9, 0.85, 0.6)))
    curves = {"gnorm": PUBLISHED.curves[GNORM], "taylor": rival, "random:2": trials}
    assert hidden(with_curves(PUBLISHED, curves), 0.01, {}) == [
        "BERT: taylor is better on average over the curve (79.88 % against 78.75 %), can lose 2 by the rule "
        "where gnorm can lose 1 and is better than gnorm at 1 of 4 levels (2).",
        "BERT: the mean of random:2 is better on average over the curve (78.75 % against 72.50 %) and is "
        "better than gnorm at 2 of 2 levels.",
        "BERT: gnorm is worse than every one of the 2 trials of random:2 at 2 of 2 levels (2–4).",
    ]


def test_a_method_that_is_no_better_is_not_named():
    same = Curve(LEVELS, (0.9, 0.895, 0.5, 0.5, 0.4))  # may lose as many, and is below
    both = {"gnorm": PUBLISHED.curves[GNORM], "taylor": same}
    assert hidden(with_curves(PUBLISHED, both), 0.01, {}) == []


def test_perplexities_are_shown_and_lower_is_better():
    held = Curve(HALVES, tuple(-math.log(p) for p in (10, 10.05, 40)))
    trials = Curve.of_trials(HALVES, tuple(((-math.log(10)), -3.0, -p) for p in (4.0, 5.0)))
    losses = np.log(np.array([[10, 10], [9, 11.0], [30, 50]]))[None]
    values = {GNORM: losses, BASE_KEY: losses[:, :1]}
    kept = SplitPredictions(None, {GNORM: HALVES, BASE_KEY: (0.0,)}, values)
    curves = {"gnorm": held, "random:2": trials}
    found = with_curves(made("lm", metric="perplexity"), curves, predictions={"validation": kept})
    row = by(summary(found), method="gnorm")
    assert (row["base"], row["removed"]) == (pytest.approx(10), 0.5)
    assert row["validation low"] < row["validation"] < row["validation high"]
    assert row["area over random"] > 0
    assert row["levels above all trials"] == 2
    last = by(by_level(found, {}), method="random:2", removed=1.0)
    assert last["highest trial"] == pytest.approx(math.exp(4))  # the best
    assert last["lowest trial"] == pytest.approx(math.exp(5))
    assert by(summary(found), method="random:2")["removed"] == 0


def test_a_better_perplexity_has_a_positive_difference():
    """The second method lies above gnorm: held as minus the logarithm, higher is better."""
    losses = {"gnorm": (2.0, 2.5, 3.0), "entropy": (2.0, 2.2, 3.0)}
    values = one_shot({m: np.repeat(np.array(x)[None, :, None], 40, 2) for m, x in losses.items()})
    split = SplitPredictions(None, dict.fromkeys(values, HALVES), values)
    curves = {m: Curve(HALVES, tuple(-v for v in x)) for m, x in losses.items()}
    found = with_curves(made(metric="perplexity"), curves, predictions={"validation": split})
    row = by(compared(found), a="gnorm", b="entropy", removed=None)
    assert row["difference"] == pytest.approx(-0.15)
    assert row["verdict"] == "b better"
    (line,) = hidden(found, 0.01, bootstraps(found))
    assert "entropy is better on average" in line
    assert "+15.00 to +15.00" in line


# ------------------------------------------------------------------------------------ numbers as text


def test_numbers_as_text():
    assert text.value("accuracy", 0.90082) == "90.08 %"
    assert text.value("f1", 0.5) == "50.00 %"
    assert text.value("matthews", -0.5) == "−0.500"
    assert text.value("perplexity", 12.344) == "12.34"
    assert text.difference("accuracy", -0.0193) == "−1.93"
    assert text.difference("accuracy", -1e-9) == "+0.00"
    assert text.value("accuracy", None) == text.difference("accuracy", None) == ""
    assert text.times(None) == "—"


def test_neighbouring_levels_are_joined():
    sixty = made(units=60)
    every = [k / 60 for k in range(0, 61, 6)]
    assert text.ranges(sixty, [k / 60 for k in (24, 30, 36, 48)], every) == "24–36, 48"
    forty = made(units=40)
    levels = [k / 40 for k in range(40)]
    assert text.ranges(forty, levels[::2], levels) == "0, 2, 4, 6, 8, …"


def ended_early():
    """gnorm stays within 5 points up to its end at 2 of 4; entropy leaves them with the first head."""
    curves = {
        "gnorm": Curve((0, 0.25, 0.5), (0.9, 0.9, 0.87)),
        "entropy": Curve((0, 0.25, 0.5), (0.9, 0.6, 0.5)),
    }
    return with_curves(made(), curves, task="reviews", examples={"validation": 40})


def test_where_a_curve_ended_is_not_where_it_fell():
    table = Report([ended_early()], 0.05).tables()[0]
    one, two = by(table.rows, method="gnorm"), by(table.rows, method="entropy")
    assert (one["removed"], one["removed within 1/2/5"]) == ("≥ 2 of 4", "1/1/≥ 2")
    assert (two["removed"], two["removed within 1/2/5"]) == ("0 of 4", "0/0/0")
    row = by(summary(ended_early(), 0.05), method="gnorm")
    assert (row["removed"], row["removed within 5"], row["measured to"]) == (0.5, 0.5, 0.5)
    points = Report([ended_early()], 0.05, {"toy": 1}).tables()[-1]
    assert points.rows[0]["the rule removes"] == "≥ 2"
    whole = with_curves(made(), {"gnorm": Curve(LEVELS, (0.9,) * 5)})
    assert Report([whole]).tables()[0].rows[0]["removed"] == "4 of 4"


def test_the_caption_describes_data_and_levels():
    assert captions.describe_data(ended_early()) == "reviews, 40 validation examples"
    assert captions.describe_levels(ended_early()) == []
    settings = {"gnorm": {"rescore": True, "step": 2}}
    coarse = with_curves(made(), {"gnorm": Curve(HALVES, (0.9, 0.9, 0.5))}, settings=settings)
    assert captions.describe_levels(coarse) == ["measured after every 2 heads, scored again after every 2"]
    assert captions.describe_levels(made())[0] == "random:3 measured after every 2 heads"
    auto = dataclasses.replace(coarse, settings={"gnorm": {"rescore": True, "step": "auto"}})
    assert captions.describe_levels(auto) == ["scored and measured 2 times, at steps that it chose"]
    book = dataclasses.replace(coarse, metric="perplexity", task="book", examples={"validation": 9})
    assert captions.describe_panel(book) == "book, validation, 9 blocks, every 2 heads"


def test_a_base_no_better_than_the_most_frequent_class_is_in_the_caption():
    weak, strong = (captions.describe(made(majority=share), 0.01) for share in (0.9, 0.89))
    assert len(weak) > len(strong)


def test_the_random_baseline_is_the_one_with_most_trials():
    curves = made().curves
    one = Curve.of_trials(HALVES, curves[RANDOM].trials[:1])
    found = dataclasses.replace(made(), curves={("random:1", ONE_SHOT): one, **curves})
    assert (found.random, found.lead) == ("random:3", "gnorm")
    area = by(summary(found), method="gnorm")["area over random"]
    assert area == by(summary(made()), method="gnorm")["area over random"]


# -------------------------------------------------------------------------------------------- files


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return folder, Report([made(), STRANGE], points={"toy": 3}).write(folder)


def test_everything_is_written(written):
    folder, files = written
    assert all(file.stat().st_size for file in files)
    names = {str(file.relative_to(folder)) for file in files}
    strange = "%3D1%2B1%7C%3Cb%3E%24x%24"
    drawn = ["curves", "boxes", "layers", "masks", "heat-toy", "order-toy", "pooling-toy", f"order-{strange}"]
    assert names == {
        *(f"tables/{name}.csv" for name in ("rows", "summary", "by_level", "pairs", "points")),
        "tables/report.xlsx",
        "tables/summary.md",
        "report.html",
        *(f"figures/{name}.{kind}" for name in drawn for kind in ("png", "pdf")),
    }


def test_the_same_results_make_the_same_bytes(written, tmp_path):
    folder, files = written
    again = Report([made(), STRANGE], points={"toy": 3}).write(tmp_path)
    assert len(again) == len(files)
    for file in again:
        assert file.read_bytes() == (folder / file.relative_to(tmp_path)).read_bytes(), file.name


def test_text_from_outside_is_never_a_formula(written):
    import openpyxl

    folder, _ = written
    book = openpyxl.load_workbook(folder / "tables" / "report.xlsx")
    assert book.sheetnames == ["rows", "summary", "by_level", "pairs", "points"]
    cells = [c for sheet in book for line in sheet.iter_rows() for c in line]
    assert {c.data_type for c in cells} <= {"s", "n"}
    assert any(c.value == "=1+1|<b>$x$" and c.quotePrefix for c in cells)
    with (folder / "tables" / "rows.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["model"] for row in rows} == {"toy", "'=1+1|<b>$x$"}
    assert not any(v.startswith(("=", "+", "@")) for row in rows for v in row.values())
    page = (folder / "tables" / "summary.md").read_text(encoding="utf-8")
    assert r"=1+1\|\<b\>$x$" in page
    for line in page.splitlines():
        assert not line.startswith("|") or line.endswith("|")


@pytest.mark.parametrize("start", ["=", "+", "-", "@", " =", "\t", "\r", "\n"])
def test_every_way_to_begin_a_formula(tmp_path, start):
    import openpyxl

    evil = f"{start}cmd|' /C calc'!A0\x07"
    rows = [{evil: evil, "n": -1.5, "empty": None}]
    write_book(tmp_path / "x.xlsx", {"rows": grid(rows)})
    sheet = openpyxl.load_workbook(tmp_path / "x.xlsx")["rows"]
    assert [c.data_type for line in sheet.iter_rows() for c in line] == ["s", "s", "s", "n"]
    write_csv(tmp_path / "x.csv", rows)
    header, cells = list(csv.reader((tmp_path / "x.csv").open(newline="")))
    assert header[0] == cells[0]
    assert cells[0][0] == ("'" if start.strip() else " ")
    assert cells[0].isprintable()
    assert cells[1:] == ["-1.5"]


def test_one_row_per_measurement(written):
    folder, _ = written
    with (folder / "tables" / "rows.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "toy"]
    assert len(rows) == 3 * 5 + 3 * 3 + 2
    third = by(rows, method="gnorm", removed="0.75", split="validation")
    assert (third["layer"], third["unit"], third["value"], third["kept units"]) == ("1", "0", "0.8", "1")
    assert by(rows, method="gnorm", split="test")["value"] == str(34 / 40)
    assert len([r for r in rows if r["method"] == "random:3" and r["trial"] == "2"]) == 3
    assert "zeros" not in rows[0]  # heads have none


def test_plain_data_for_programs():
    found = Report([made()]).to_dict()
    assert [row["method"] for row in found["summary"]] == ["gnorm", "gnorm:static", "entropy", "random:3"]
    assert (found["points"], found["tolerance"], found["notes"]) == ([], 0.01, {"toy": []})


def test_a_report_in_a_notebook():
    shown = Report([STRANGE])._repr_html_()
    assert html.escape(STRANGE.model) in shown
    assert "<b>" not in shown


def test_the_tolerance_of_the_run_is_the_default():
    assert Report([made(tolerance=0.2)]).tolerance == 0.2
    assert Report([made(tolerance=0.2)], 0.05).tolerance == 0.05


def test_runs_of_one_model_are_named_by_their_folders():
    runs = [made(source="first"), made(source="second"), made("other", source="third")]
    assert [one.model for one in rename_equal(runs)] == ["toy (first)", "toy (second)", "other"]
    again = rename_equal([made(source="run"), made(source="run"), made()])
    assert [one.model for one in again] == ["toy (run)", "toy (run) (2)", "toy"]
    assert [one.model for one in Report([made(), made()]).results] == ["toy", "toy (2)"]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError) as error:
        Report([made()]).write(tmp_path / "file")
    assert tmp_path / "file" in (error.value.path, error.value.path.parent)


# ------------------------------------------------------------------------------------------ figures


def draw(name, results, points=None):
    return figures.load(name).draw(results, 0.01, points or {})


def weights():
    """Two methods, three phases, percent instead of counts."""
    keys = [("a", ONE_SHOT), ("a", RECOVERED), ("b:x=1", RECOVERED), ("b:x=1", "gradual")]
    curves = {key: Curve((0, 0.5, 0.8), (0.9, 0.9 - 0.01 * i, 0.5)) for i, key in enumerate(keys)}
    cost = {x: Cost(10, None, int(8 * x), 8, int(8 * x), 40, 40 - int(20 * x)) for x in (0.0, 0.5, 0.8)}
    return Results(
        "sparse", "accuracy", 8, curves, "weights", costs={BASE_KEY: cost, keys[0]: cost}, majority=0.5
    )


def everything(model="toy"):
    one = made(model)
    with style.matplotlib_settings():
        yield draw("curves", [one, one, one], {model: 3})
        yield draw("curves", [dataclasses.replace(one, task="a long name", examples={"validation": 872})])
        yield draw("curves", [weights()])
        yield draw("curves", [weights(), one])
        yield draw("boxes", [one])
        yield draw("masks", [one, dataclasses.replace(one, model="other", layers=(4,), uses=12)])
        yield draw("masks", [one], {"toy": 2})
        yield draw("heat", [one])
        yield draw("order", [one])
        yield draw("pooling", [one])
        change = {role: np.linspace(-6e-6, 5e-6, 18).reshape(3, 6) for role in "qkv"}
        wide = {(0, 0): change, (1, 1): change}
        yield draw("pooling", [dataclasses.replace(one, layers=(6, 6, 6), pooling=wide)])


def test_nothing_sticks_out_of_a_figure():
    for i, figure in enumerate(everything()):
        style.lay_out(figure)
        box = figure.get_tightbbox()
        width, height = figure.get_size_inches()
        assert box.x0 > -0.02, i
        assert box.y0 > -0.02, i
        assert box.x1 < width + 0.02, i
        assert box.y1 < height + 0.02, i


def test_dollars_are_dollars():
    r"""`$\frac$` is no formula and no error."""
    for figure in everything(r"$\frac$ a_b"):
        figure.draw_without_rendering()
    figure = next(everything(r"cost $5 or $6"))
    assert figure.axes[0].get_title() == r"cost \$5 or \$6: heads removed"


def test_every_level_is_drawn():
    axis = next(everything()).axes[0]
    longest = max(axis.get_lines(), key=lambda line: len(line.get_xdata()))
    assert tuple(longest.get_xdata()) == (0, 1, 2, 3, 4)
    looks = [(str(ln.get_linestyle()), ln.get_color(), ln.get_marker()) for ln in axis.get_lines()]
    assert len(set(looks)) == len(looks)


def test_weights_are_drawn_in_percent_with_a_panel_for_what_was_trained():
    with style.matplotlib_settings():
        figure = draw("curves", [weights()])
    first, second = figure.axes
    assert [axis.get_title() for axis in (first, second)] == [
        "sparse: weights, one-shot",
        "sparse: weights, recovered and gradual",
    ]
    assert list(first.get_lines()[0].get_xdata()) == [50, 80]
    assert first.get_ylim() == second.get_ylim()
    (top,) = first.child_axes
    assert [label.get_text() for label in top.get_xticklabels()] == ["1.67×", "2.50×"]
    assert {"recovered", "gradual", "collapse"} <= {t.get_text() for t in figure.legends[0].get_texts()}


@pytest.mark.parametrize("by_phase", [False, True])
def test_all_methods_look_different(by_phase):
    methods = ["a", "b", "c:x=1", "c:y=2", "c", "gnorm:step=2", "gnorm", "gnorm:static"]
    settings = {m: {"criterion": "gnorm", "colour": "#D55E00"} for m in methods if m.startswith("gnorm")}
    looks = style.lines(methods, settings, by_phase)
    assert len({(str(look["linestyle"]), look["color"]) for look in looks.values()}) == len(methods)
    assert looks["gnorm"]["color"] == "#D55E00"
    assert (looks["gnorm:static"]["color"] == "#D55E00") is not by_phase


def test_the_chosen_and_the_picked_points_are_marked():
    with style.matplotlib_settings():
        figure = draw("curves", [made()], {"toy": 3})
    (axis,) = figure.axes
    marks = {line.get_marker(): [] for line in axis.lines}
    for line in axis.lines:
        marks[line.get_marker()] += list(zip(line.get_xdata(), line.get_ydata()))
    assert marks["|"] == [(1, 0.9)]  # the others may lose nothing
    assert marks["*"] == [(3, 0.8)]
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"chosen: within 1 point", "picked by hand"} <= set(named)


def test_scores_have_their_unit():
    with style.matplotlib_settings():
        figure = draw("heat", [made()])
    labels = [" ".join(a.get_ylabel().split()) for a in figure.axes[0].child_axes]
    assert labels == ["ln of a product"]


def test_what_there_is_nothing_of_is_not_drawn(tmp_path):
    bare = Results("bare", "accuracy", 9, {("mine", ONE_SHOT): Curve((0, 1), (0.9, 0.1))})
    names = {file.name for file in Report([bare]).write(tmp_path)}
    assert {n for n in names if n.endswith(".png")} == {"curves.png"}
    trials = {("random:1", ONE_SHOT): Curve.of_trials((0, 1), ((0.9, 0.1),))}
    names = {
        file.name for file in Report([Results("only", "accuracy", 9, trials)]).write(tmp_path / "random")
    }
    assert {n for n in names if n.endswith(".png")} == {"curves.png", "boxes.png"}
    for results in ([], [Results("none", "accuracy", 9)]):
        with pytest.raises(DataError):
            Report(results)


def test_a_figure_is_added_by_a_file(tmp_path, monkeypatch):
    (tmp_path / "bars.py").write_text(
        "from espalier.reports import style\n"
        "def draw(results, tolerance, points):\n"
        "    figure, (axis,) = style.panels([2])\n"
        "    axis.bar(range(len(results)), [one.base for one in results])\n"
        "    return figure\n"
    )
    (tmp_path / "_help.py").write_text("")
    monkeypatch.setattr(figures, "__path__", [*figures.__path__, str(tmp_path)])
    assert "bars" in figures.names()
    assert "_help" not in figures.names()
    names = {file.name for file in Report([made()]).write(tmp_path / "report")}
    assert {"bars.png", "bars.pdf", "curves.png"} <= names


def test_settings_and_pyplot_are_left_alone():
    code = (
        "import matplotlib, sys, tempfile\n"
        "matplotlib.rcParams['font.size'] = 17\n"
        "from espalier.analysis import Curve, Results\n"
        "from espalier.reports import Report\n"
        "r = Results('m', 'accuracy', 1, {('a', 'one-shot'): Curve((0, 1), (.9, .5))})\n"
        "Report([r]).write(tempfile.mkdtemp())\n"
        "assert matplotlib.rcParams['font.size'] == 17\n"
        "assert not {'matplotlib.pyplot', 'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("library", ["matplotlib", "openpyxl"])
def test_a_missing_library_is_named(monkeypatch, tmp_path, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(DependencyError) as error:
        Report([made()]).write(tmp_path)
    assert (error.value.package, error.value.extra) == (library, "report")


# ------------------------------------------------------------------------------------ brief, against costs


def test_a_brief_table_has_four_columns_and_a_verdict_and_fits_a_terminal():
    report = Report([made("toy", task="reviews")])
    (table,) = report.brief()
    assert [name.split()[0] for name in table.columns] == ["method", "removed", "change", "MACs"]
    assert max(map(len, table.to_text().splitlines()[:-1])) <= 80  # the verdict is wrapped by the terminal
    assert table.caption == report.verdict(report.results[0])
    for part in ("gnorm removes 1 of 4 heads", "within 1 point", "87.50 → 85.00 %", "−2.50 [−7.50, +0.00]"):
        assert part in table.caption
    assert "gnorm:static with 0 heads removed" in table.caption
    assert "(random:3): 0 heads removed" in table.caption


def test_the_verdict_of_a_run_that_loses_with_the_first_unit():
    falls = with_curves(made(), {"gnorm": Curve(HALVES, (0.9, 0.5, 0.4))})
    assert Report([falls]).verdict(falls).startswith("No method removes anything")
    (table,) = Report([falls]).brief()
    assert table.columns == ["method", "removed"]


def test_the_best_method_is_not_a_random_one_and_ties_go_to_the_better():
    curves = {
        "a": Curve(HALVES, (0.9, 0.895, 0.1)),
        "b": Curve(HALVES, (0.9, 0.9, 0.1)),
        "random:2": Curve.of_trials(HALVES, ((0.9, 0.9, 0.9),) * 2),
    }
    results = with_curves(made(), curves)
    assert Report([results]).verdict(results).startswith("b removes 2 of 4")


def test_an_axis_that_no_run_has_is_refused_before_anything_is_written(tmp_path, caplog):
    costs = {key: {x: Cost(10, 5, latency=0.01) for x in LEVELS} for key in made().curves}
    timed = made("timed", costs=costs)
    with pytest.raises(InvalidValueError) as error:
        Report([made()]).write(tmp_path / "one", axis="latency")
    assert error.value.parameter == "axis"
    assert not (tmp_path / "one").exists()
    Report([timed, made()])._check_axis("latency")
    assert len(caplog.records) == 1


def test_the_change_of_a_perplexity_is_that_of_its_value():
    rises = -np.log(1.0006), -np.log(1.0028), -np.log(0.9985)  # of the score, lowest end first
    assert text.change("perplexity", rises) == "+0.06 % [−0.15, +0.28]"
    assert text.change("perplexity", (-1000.0, None, None)).startswith("+")
    assert text.change("accuracy", (-0.025, -0.075, 0.0), 40) == "−2.50 [−7.50, +0.00]"
    assert text.change("accuracy", (None, None, None)) == ""


def test_an_interval_of_equal_draws_has_the_width_of_the_rule_of_three():
    assert text.change("accuracy", (0.0, 0.0, 0.0), 50) == "+0.00 [−6.00, +6.00]"
    assert text.change("accuracy", (0.0, 0.0, 0.0)) == "+0.00"
    assert text.change("spearman", (0.0, 0.0, 0.0), 50) == "+0.000"
    assert text.change("accuracy", (0.0, 0.0, 0.0), 50, text.four_digits) == "+0.0000 [−0.0600, +0.0600]"


def test_curves_against_costs_begin_on_the_left():
    with style.matplotlib_settings():
        figure = figures.load("curves").draw([made()], 0.01, {}, axis="macs")
        bare = with_curves(made(), {"gnorm": made().curves[GNORM]}, costs={})
        fallback = figures.load("curves").draw([bare], 0.01, {}, axis="latency")
    (axis,) = figure.axes
    longest = max(axis.get_lines(), key=lambda line: len(line.get_xdata()))
    assert list(longest.get_xdata()) == pytest.approx([x / 1e6 for x in (100, 99, 98, 97, 96)])
    assert axis.xaxis_inverted()
    assert "removed" in fallback.axes[0].get_xlabel()  # no latency was measured
    with pytest.raises(UnknownNameError) as error:
        figures.load("curves").draw([made()], 0.01, {}, axis="mac")
    assert (error.value.parameter, error.value.nearest) == ("axis", "macs")


def test_masks_leave_out_what_removes_nothing_and_show_neurons_as_bars():
    with style.matplotlib_settings():
        figure = draw("masks", [made()])
        order = [(layer, unit) for unit in range(100) for layer in (0, 1)]
        wide = {"layers": (100, 100), "units": 200, "target": "neurons", "orders": {"gnorm": order}}
        bars = draw("masks", [with_curves(made(), {"gnorm": made().curves[GNORM]}, **wide)])
        nothing = with_curves(made(), {"gnorm": Curve(HALVES, (0.9, 0.5, 0.4))}, orders=ORDERS)
        assert draw("masks", [nothing]) is None
    assert [axis.get_title() for axis in figure.axes] == ["gnorm: 1 of 4 removed"]
    (axis,) = bars.axes
    assert [round(bar.get_width()) for bar in axis.patches] == [100, 100, 75, 75]


def test_runs_of_one_model_are_named_by_what_differs():
    runs = [made(task="a"), made(task="b"), made(task="b", target="neurons")]
    assert [one.model for one in rename_equal(runs)] == [
        "toy (heads on a)",
        "toy (heads on b)",
        "toy (neurons on b)",
    ]
    twice = [dataclasses.replace(made(), source=name) for name in ("x", "y")]
    assert [one.model for one in rename_equal(twice)] == ["toy (x)", "toy (y)"]
