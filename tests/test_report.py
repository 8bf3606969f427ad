"""Tables and figures: right numbers, the same bytes again, nothing from outside that gets out of hand."""

import csv
import dataclasses
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import espalier.cli.report
from espalier.analysis.bootstrap import bootstraps
from espalier.analysis.curves import Curve, Trials
from espalier.analysis.results import Answers, Cost, Results
from espalier.analysis.summary import at_points, by_level, comparisons, summary
from espalier.cli.app import app
from espalier.core.errors import EspalierError
from espalier.reports import Report, captions, distinct, make_report, style, tables, words
from espalier.reports.figures import boxes, curves, heat, masks, order, pooling
from espalier.reports.hidden import hidden
from espalier.reproductions.greedy_gnorm.published import write_published

LEVELS = (0, 1, 2, 3, 4)
ORDERS = {
    "gnorm": [(0, 0), (0, 1), (1, 0), (1, 1)],
    "gnorm:static": [(0, 1), (0, 0), (1, 1), (1, 0)],
    "entropy": [(1, 1), (1, 0), (0, 1), (0, 0)],
}


def made(model="toy", n=40, **more):
    """A model of 2 × 2 heads, and answers from which every accuracy follows."""
    truth = np.zeros(n, dtype=np.int16)
    right = {
        "gnorm": (36, 36, 30, 32, 20),
        "gnorm:static": (36, 34, 33, 24, 20),
        "entropy": (36, 28, 26, 22, 20),
    }
    tried = ((36, 34, 20), (36, 36, 20), (36, 26, 20))

    def said(hits):
        return np.stack([np.arange(n) >= hit for hit in hits]).astype(np.int16)

    guesses = {label: said(hits) for label, hits in right.items()}
    guesses["random:3"] = np.stack([said(hits) for hits in tried])
    levels = {**dict.fromkeys(right, LEVELS), "random:3": (0, 2, 4)}
    test = {
        "base": said([35]),
        "gnorm": said([35, 34]),
    }
    return Results(
        **{
            "model": model,
            "metric": "accuracy",
            "units": 4,
            "layers": (2, 2),
            "curves": {x: Curve(LEVELS, tuple(h / n for h in hits)) for x, hits in right.items()},
            "trials": {"random:3": Trials((0, 2, 4), tuple(tuple(h / n for h in t) for t in tried))},
            "orders": ORDERS,
            "costs": {
                "base": {0: Cost(2**20, 100)},
                **{x: {k: Cost(2**20 - 2**18 * k // 4, 100 - k) for k in LEVELS} for x in guesses},
            },
            "answers": {
                "validation": Answers(truth, levels, guesses),
                "test": Answers(truth, {"base": (0,), "gnorm": (0, 1)}, test),
            },
            "test": {"base": {0: (35 / n,)}, "gnorm": {1: (34 / n,)}},
            "scores": {"gnorm": np.array([[1.0, np.nan], [2.0, -3.0]])},
            "pooling": {(0, 0): {role: np.array([[9.0, 1e-6], [-2e-6, 0]]) for role in "qkv"}},
            **more,
        }
    )


ODD = made("=1+1|<b>$x$", scores={}, pooling={}, trials={})
PUBLISHED = dataclasses.replace(made("BERT"), answers={}, test={}, scores={}, pooling={})


def by(rows, **wanted):
    (row,) = [r for r in rows if all(r[name] == value for name, value in wanted.items())]
    return row


# ------------------------------------------------------------------------------------------ numbers


def test_a_summary_row():
    row = by(summary(made()), strategy="gnorm")
    assert (row["base"], row["chosen"], row["kept"], row["validation"]) == (0.9, 1, 3, 0.9)
    assert row["validation low"] < 0.9 < row["validation high"]
    assert (row["test before"], row["test after"]) == (35 / 40, 34 / 40)
    assert row["test change"] == pytest.approx(-1 / 40)
    assert row["test change low"] < -1 / 40 < row["test change high"] == 0  # one answer, or none
    assert (row["megabytes before"], row["megabytes after"]) == (4.0, 3.75)
    assert (row["parameters before"], row["macs after"]) == (2**20, 99)
    area = (36 / 2 + 36 + 30 + 32 + 20 / 2) / 4 / 40
    assert row["area"] == pytest.approx(area)
    assert row["area low"] < area < row["area high"]
    assert [row[f"unbroken {p}"] for p in (1, 2, 5)] == [1, 1, 1]
    mean = (36 / 2 + 32 + 20 / 2) / 2 / 40
    same = (36 / 2 + 30 + 20 / 2) / 2 / 40  # at the levels that both were measured at
    assert row["area over random"] == pytest.approx(same - mean)
    assert row["area over random low"] < same - mean < row["area over random high"]
    assert (row["levels shared"], row["levels above random mean"]) == (2, 0)
    assert (row["levels above all trials"], row["levels below all trials"]) == (0, 0)
    assert row["trials"] is None


def test_the_row_of_random_removal():
    row = by(summary(made(), within=0.1), strategy="random:3")
    assert (row["chosen"], row["trials"]) == (2, 3)
    assert row["validation"] == pytest.approx(32 / 40)
    assert (row["validation lowest"], row["validation highest"]) == (26 / 40, 36 / 40)
    assert row["area lowest"] < row["area"] < row["area highest"]
    assert row["area over random"] is None
    assert row["test after"] is None


def test_what_was_not_tested_is_empty():
    rows = summary(made(), within=0.2)  # another point than the one that was tested
    assert by(rows, strategy="gnorm")["chosen"] == 3
    assert by(rows, strategy="gnorm")["test after"] is None
    base = by(summary(made()), strategy="entropy")  # nothing may go: that is the unpruned model
    assert (base["chosen"], base["test after"], base["test change"]) == (0, 35 / 40, 0)


def test_without_answers_there_are_no_intervals():
    for row in summary(PUBLISHED) + comparisons(PUBLISHED):
        assert all(row[name] is None for name in row if name.endswith((" low", " high")))
    assert {row["verdict"] for row in comparisons(PUBLISHED)} == {"no interval"}
    assert "no intervals" in captions.caption(PUBLISHED, 0.01)
    assert "[" not in Report([PUBLISHED]).markdown()


def test_by_level():
    rows = by_level(made())
    assert [row["removed"] for row in rows] == [0, 2, 4]
    assert rows[1]["gnorm"] == 30 / 40
    assert rows[1]["random:3 mean"] == pytest.approx(32 / 40)
    assert (rows[1]["random:3 lowest"], rows[1]["random:3 highest"]) == (26 / 40, 36 / 40)
    assert rows[1]["part of random:3 below gnorm"] == pytest.approx(1 / 3)
    assert rows[0]["part of random:3 below gnorm"] == 0


def test_a_tie_hidden_by_rounding_is_a_tie():
    """Published curves are rounded to nine digits, the trials are not."""
    rounded = made(curves={"gnorm": Curve((0, 2, 4), (0.333333333, 0.2, 0.1))}, answers={})
    trials = {"random:1": Trials((0, 2, 4), ((1 / 3, 0.2 - 1e-12, 0.1),))}
    rounded = dataclasses.replace(rounded, trials=trials)
    assert by(summary(rounded), strategy="gnorm")["levels above random mean"] == 0
    assert {row["part of random:1 below gnorm"] for row in by_level(rounded)} == {0}


def test_comparisons():
    rows = comparisons(made())
    assert [(r["a"], r["b"]) for r in rows] == [
        ("gnorm", "gnorm:static"),
        ("gnorm", "random:3"),
        ("gnorm:static", "random:3"),
        ("entropy", "random:3"),
        ("gnorm", "entropy"),
    ]
    first = rows[0]
    assert first["difference"] == pytest.approx((36 - 34 + 30 - 33 + 32 - 24) / 4 / 40)
    assert first["low"] < first["difference"] < first["high"]
    assert (first["levels"], first["levels a above"], first["levels b above"]) == (4, 2, 1)
    assert (first["at"], first["difference there"]) == (1, pytest.approx(2 / 40))
    assert rows[1]["at"] is None  # random removal was not measured so early
    assert by(rows, a="gnorm", b="entropy")["verdict"] == "a better"


def test_unequal_stretches_are_compared_where_both_are():
    falls_later = Curve(LEVELS, (0.9, 0.9, 0.9, 0.1, 0.1))
    short = made(curves={"gnorm": Curve((0, 2), (0.9, 0.7)), "taylor": falls_later})
    row = by(comparisons(dataclasses.replace(short, answers={})), a="gnorm", b="taylor")
    assert row["difference"] == pytest.approx(0.8 - 0.9)
    assert row["levels"] == 1


def test_points():
    (row,) = at_points([made()], {"toy": 3})
    assert (row["removed"], row["kept"], row["before"], row["after"]) == (3, 1, 0.9, 0.8)
    assert row["relative change"] == pytest.approx(0.8 / 0.9 - 1)
    assert (row["megabytes before"], row["megabytes after"]) == (4.0, 3.25)
    assert (row["rule removes"], row["rule after"], row["rule megabytes"]) == (1, 0.9, 3.75)
    with pytest.raises(EspalierError, match="no results of a model 'toi', did you mean 'toy'"):
        at_points([made()], {"toi": 3})
    with pytest.raises(EspalierError, match="toy: gnorm was not measured at 9 of 4 removed"):
        at_points([made()], {"toy": 9})


def test_what_is_hidden():
    lines = hidden(PUBLISHED, point=3)
    assert lines == [
        "BERT: the point 3 lies beyond the 1 that the rule allows: at 2 gnorm is more than 1 point "
        "worse than the unpruned model.",
        "BERT: gnorm goes to 75.00 % at 2 before it comes back to 80.00 % at 3.",
        "BERT: the mean of random:3 is higher on average over the curve (75.00 % against 72.50 %) and is "
        "higher than gnorm at 1 of 2 levels (2).",
    ]
    assert any("very same heads as gnorm" in line for line in hidden(PUBLISHED, point=2))
    rival = Curve(LEVELS, (0.9, 0.9, 0.895, 0.7, 0.5))
    trials = {"random:2": Trials((0, 2, 4), ((0.9, 0.8, 0.6), (0.9, 0.85, 0.6)))}
    beaten = dataclasses.replace(
        PUBLISHED, curves={"gnorm": PUBLISHED.curves["gnorm"], "taylor": rival}, trials=trials
    )
    assert hidden(beaten) == [
        "BERT: taylor is higher on average over the curve (79.88 % against 78.75 %), can lose 2 by the rule "
        "where gnorm can lose 1 and is higher than gnorm at 1 of 4 levels (2).",
        "BERT: the mean of random:2 is higher on average over the curve (78.75 % against 72.50 %) and is "
        "higher than gnorm at 2 of 2 levels.",
        "BERT: gnorm is lower than every one of the 2 trials of random:2 at 2 of 2 levels (2–4).",
    ]


def test_who_is_no_better_is_not_named():
    same = Curve(LEVELS, (0.9, 0.895, 0.5, 0.5, 0.4))  # may lose as many, and is below
    both = {"gnorm": PUBLISHED.curves["gnorm"], "taylor": same}
    assert hidden(dataclasses.replace(PUBLISHED, curves=both, trials={}, orders={})) == []


def test_intervals_stand_beside_what_is_hidden():
    full = made()
    swapped = dataclasses.replace(
        full, curves={"gnorm": full.curves["entropy"], "entropy": full.curves["gnorm"]}
    )
    said = full.answers["validation"].guesses
    answers = Answers(
        full.answers["validation"].truth,
        full.answers["validation"].levels,
        {**said, "gnorm": said["entropy"], "entropy": said["gnorm"]},
    )
    swapped = dataclasses.replace(swapped, answers={"validation": answers})
    line = next(x for x in Report([swapped]).hides if "entropy is" in x)
    assert "95 % interval of the difference +" in line


def test_perplexities_are_shown_and_lower_is_better():
    held = Curve((0, 2, 4), tuple(-math.log(p) for p in (10, 10.05, 40)))
    trials = {"random:2": Trials((0, 2, 4), tuple(((-math.log(10)), -3.0, -p) for p in (4.0, 5.0)))}
    losses = np.log(np.array([[10, 10], [9, 11.0], [30, 50]]))
    answers = {"validation": Answers(None, {"gnorm": (0, 2, 4)}, {"gnorm": losses})}
    found = made("lm", metric="perplexity", curves={"gnorm": held}, trials=trials, answers=answers)
    row = by(summary(found), strategy="gnorm")
    assert (row["base"], row["chosen"]) == (pytest.approx(10), 2)
    assert row["validation low"] < row["validation"] < row["validation high"]
    assert row["area over random"] > 0
    assert row["levels above all trials"] == 2
    low = by(summary(found), strategy="random:2")
    assert by_level(found)[2]["random:2 lowest"] == pytest.approx(math.exp(5))
    assert low["chosen"] == 0
    text = Report([found]).markdown()
    assert "Perplexity 10.00 unpruned" in text
    assert "within 1 % of it" in text


# -------------------------------------------------------------------------------------------- words


def test_words():
    assert words.value("accuracy", 0.90082) == "90.08 %"
    assert words.value("matthews", -0.5) == "−0.500"
    assert words.difference("accuracy", -0.0193) == "−1.93"
    assert words.runs([24, 30, 36, 48], range(0, 61, 6)) == "24–36, 48"
    assert words.runs(range(0, 40, 2), range(40)) == "0, 2, 4, 6, 8, …"
    assert words.value("accuracy", None) == words.difference("accuracy", None) == ""


# -------------------------------------------------------------------------------------------- files


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return folder, make_report([made(), ODD], folder, points={"toy": 3})


def test_everything_is_written(reported):
    folder, files = reported
    assert all(file.stat().st_size for file in files)
    names = {str(file.relative_to(folder)) for file in files}
    odd = "%3D1%2B1%7C%3Cb%3E%24x%24"
    drawn = ["curves", "boxes", "masks", "heat-toy", "order-toy", "pooling-toy", f"order-{odd}"]
    assert names == {
        *(f"tables/{name}.csv" for name in ("rows", "summary", "by_level", "comparisons", "points")),
        "tables/report.xlsx",
        "tables/summary.md",
        *(f"figures/{name}.{kind}" for name in drawn for kind in ("png", "pdf")),
    }


def test_the_same_results_make_the_same_bytes(reported, tmp_path):
    folder, _ = reported
    again = Report([made(), ODD], points={"toy": 3}).write(tmp_path, figures=False)
    (tmp_path / "figures").mkdir()
    with style.look():
        again += style.save(curves.draw([made(), ODD], points={"toy": 3}), tmp_path / "figures" / "curves")
        again += style.save(pooling.draw(made()), tmp_path / "figures" / "pooling-toy")
    assert len(again) == 7 + 4
    for file in again:
        assert file.read_bytes() == (folder / file.relative_to(tmp_path)).read_bytes(), file.name


def test_text_from_outside_is_never_a_formula(reported):
    import openpyxl

    folder, _ = reported
    book = openpyxl.load_workbook(folder / "tables" / "report.xlsx")
    assert book.sheetnames == ["rows", "summary", "by level", "comparisons", "points"]
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
    tables.write_xlsx(tmp_path / "x.xlsx", {"rows": [{evil: evil, "n": -1.5}]})
    sheet = openpyxl.load_workbook(tmp_path / "x.xlsx")["rows"]
    assert [c.data_type for line in sheet.iter_rows() for c in line] == ["s", "s", "s", "n"]
    tables.write_csv(tmp_path / "x.csv", [{evil: evil, "n": -1.5}])
    header, cells = list(csv.reader((tmp_path / "x.csv").open(newline="")))
    assert header[0] == cells[0]
    assert cells[0][0] == ("'" if start.strip() else " ")
    assert cells[0].isprintable()
    assert cells[1] == "-1.5"


def test_tidy_rows(reported):
    folder, _ = reported
    with (folder / "tables" / "rows.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "toy"]
    assert len(rows) == 3 * 5 + 3 * 3 + 2
    third = by(rows, strategy="gnorm", removed="3", part="validation")
    assert (third["layer"], third["unit"], third["value"], third["kept"]) == ("1", "0", "0.8", "1")
    assert by(rows, strategy="gnorm", part="test")["value"] == str(34 / 40)
    assert len([r for r in rows if r["strategy"] == "random:3" and r["trial"] == "2"]) == 3


def everything(model="toy"):
    one = made(model)
    with style.look():
        yield curves.draw([one, one, one], 0.01, {model: 3})
        told = dataclasses.replace(one, task="a task with a long name", examples={"validation": 872})
        yield curves.draw([told])
        yield boxes.draw([one])
        yield masks.draw([one, dataclasses.replace(one, layers=(4,), uses=12)], 0.01, {})
        yield masks.draw([one], 0.01, {"toy": 2})
        yield heat.draw(one)
        yield order.draw(one)
        yield pooling.draw(one)
        change = {role: np.linspace(-6e-6, 5e-6, 18).reshape(3, 6) for role in "qkv"}
        wide = {(0, 0): change, (1, 1): change}
        yield pooling.draw(dataclasses.replace(one, layers=(6, 6, 6), pooling=wide))


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
    assert figure.axes[0].get_title() == r"cost \$5 or \$6"


def test_every_level_is_drawn():
    axis = next(everything()).axes[0]
    longest = max(axis.get_lines(), key=lambda line: len(line.get_xdata()))
    assert tuple(longest.get_xdata()) == LEVELS
    looks = [(str(ln.get_linestyle()), ln.get_color(), ln.get_marker()) for ln in axis.get_lines()]
    assert len(set(looks)) == len(looks)


def test_strategies_nobody_foresaw_look_different():
    labels = ["a", "b", "c:x=1", "c:y=2", "c", "gnorm:step=2", "gnorm", "gnorm:static"]
    looks = {(str(how["linestyle"]), how["color"]) for how in (style.line(x, labels) for x in labels)}
    assert len(looks) == len(labels)


def test_what_there_is_nothing_of_is_not_drawn(tmp_path):
    bare = Results("bare", "accuracy", 9, curves={"mine": Curve((0, 9), (0.9, 0.1))})
    names = {file.name for file in make_report([bare], tmp_path)}
    assert {n for n in names if n.endswith(".png")} == {"curves.png"}
    only = Results("only", "accuracy", 9, trials={"random:1": Trials((0, 9), ((0.9, 0.1),))})
    names = {file.name for file in make_report([only], tmp_path / "random")}
    assert {n for n in names if n.endswith(".png")} == {"curves.png", "boxes.png"}
    with pytest.raises(EspalierError, match="nothing was measured beyond the unpruned model"):
        make_report([Results("none", "accuracy", 9)], tmp_path)


def test_two_runs_of_one_model_keep_apart(tmp_path):
    report = Report([made(), made()])
    assert [r.model for r in report.results] == ["toy", "toy (2)"]


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EspalierError, match=r"cannot write the report .* another folder with -o"):
        make_report([made()], tmp_path / "file")


def test_settings_and_pyplot_are_left_alone():
    code = (
        "import matplotlib, sys, tempfile\n"
        "matplotlib.rcParams['font.size'] = 17\n"
        "from espalier.curves import Curve\n"
        "from espalier.reports import make_report\n"
        "from espalier.analysis.results import Results\n"
        "r = Results('m', 'accuracy', 1, curves={'a': Curve((0, 1), (.9, .5))})\n"
        "make_report([r], tempfile.mkdtemp())\n"
        "assert matplotlib.rcParams['font.size'] == 17\n"
        "assert not {'matplotlib.pyplot', 'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("library", ["matplotlib", "openpyxl"])
def test_a_missing_library_is_named(monkeypatch, tmp_path, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(EspalierError, match=rf"need {library}\. Type: pip install 'espalier\[report"):
        make_report([made()], tmp_path)


# ------------------------------------------------------------------------------------- command line


def run(*words):
    return CliRunner().invoke(app, ["report", *map(str, words)], catch_exceptions=False)


@pytest.fixture
def published(tmp_path, monkeypatch):
    shape = {"parameters": 2**20, "parameters_per_unit": 2**16, "units": 4, "uses": 1, "layers": 2}
    monkeypatch.setattr("espalier.reproductions.greedy_gnorm.published._published_shape", {"BERT": shape}.get)
    write_published(PUBLISHED, tmp_path / "files")
    return tmp_path / "files"


def test_the_command(published, tmp_path):
    done = run(published, "-o", tmp_path / "out", "--points", "BERT=3", "--no-figures", "--published")
    shown = " ".join(done.output.split())
    assert "90.00 % → 80.00 %" in shown
    assert "4.00 → 3.25" in shown
    assert "lies beyond the 1 that the rule allows" in shown
    assert f"{7 + 5} files in {tmp_path / 'out'}" in shown
    names = {file.name for file in (tmp_path / "out" / "published").iterdir()}
    assert names == {file.name for file in published.iterdir()}
    assert not (tmp_path / "out" / "figures").exists()


def test_json_for_programs(published, tmp_path):
    files = sorted(published.glob("*GreedyGnorm.csv"))
    got = json.loads(run(*files, "-o", tmp_path / "out", "--json", "--no-figures").output)
    (model,) = got["models"]
    assert [row["strategy"] for row in model["summary"]] == ["gnorm"]
    assert len(got["files"]) == 5
    assert (got["points"], model["by level"][1]["removed"]) == ([], 1)


def test_names_from_outside_are_shown_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr("espalier.reproductions.greedy_gnorm.published._published_shape", lambda name: None)
    write_published(dataclasses.replace(PUBLISHED, model="[red]x[/red]"), tmp_path / "f")
    done = run(tmp_path / "f", "-o", tmp_path / "o", "--no-figures")
    assert "[red]x[/red]: Accuracy" in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none"], "there is no none. Give a run folder"),
        (["."], "holds no results. Give a run folder"),
        (["some.txt"], "some.txt is not a file of results"),
        (["files", "--points", "BERT"], "--points takes MODEL=UNITS"),
        (["files", "--points", "BRT=1"], "did you mean 'BERT'"),
    ],
)
def test_wrong_input_ends_in_a_sentence(published, tmp_path, monkeypatch, words, message):
    (tmp_path / "some.txt").write_text("")
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EspalierError) as error:
        run(*(["run"] if words == ["."] else words))
    assert message in str(error.value)


def test_the_help_has_examples():
    assert espalier.cli.report.report.__doc__
    assert "Examples: espalier report run" in " ".join(run("--help").output.split())


# ------------------------------------------------------------------------- what a reader must know


def ended_early():
    """gnorm never leaves the band of 5 points before its end at 2 of 4; entropy leaves it at once."""
    return made(
        curves={
            "gnorm": Curve((0, 1, 2), (0.9, 0.9, 0.87)),
            "entropy": Curve((0, 1, 2), (0.9, 0.6, 0.5)),
        },
        trials={},
        answers={},
        test={},
        task="reviews",
        examples={"validation": 40},
    )


def test_where_a_curve_ended_is_not_where_it_fell():
    rows = tables.short_summary(summary(ended_early(), 0.05))
    one, two = by(rows, strategy="gnorm"), by(rows, strategy="entropy")
    assert (one["removed"], one["unbroken 1/2/5"]) == ("≥ 2 of 4", "1/1/≥ 2")
    assert (two["removed"], two["unbroken 1/2/5"]) == ("0 of 4", "0/0/0")
    row = by(summary(ended_early(), 0.05), strategy="gnorm")
    assert (row["chosen"], row["unbroken 5"], row["measured to"]) == (
        2,
        2,
        2,
    )  # numbers stay numbers
    said = captions.caption(ended_early(), 0.05)
    assert "measured to 2 of 4 (≥" in said
    assert "area over the measured part" in said
    assert "measured to" not in captions.caption(made(), 0.05)
    (point,) = tables.short_points(at_points([ended_early()], {"toy": 1}, 0.05))
    assert point["the rule removes"] == "≥ 2"
    whole = made(curves={"gnorm": Curve(LEVELS, (0.9,) * 5)}, trials={}, answers={}, test={})
    assert tables.short_summary(summary(whole))[0]["removed"] == "4 of 4"


def test_curves_of_different_ends():
    both = {"gnorm": Curve(LEVELS, (0.9,) * 5), "entropy": Curve((0, 2), (0.9, 0.9))}
    said = captions.caption(made(curves=both, trials={}, answers={}, test={}), 0.01)
    assert "measured to 4, but entropy to 2" in said
    assert "entropy measured after every 2 heads" in said


def test_the_caption_names_the_data_and_the_levels():
    said = captions.caption(ended_early(), 0.05)
    assert "validation data of reviews, 40 examples" in said
    assert "measured after every" not in said
    coarse = made(curves={"gnorm": Curve((0, 2, 4), (0.9, 0.9, 0.5))}, steps={"gnorm": 2})
    said = captions.caption(coarse, 0.05)
    assert "; measured after every 2 heads; gnorm scored again after every 2;" in said
    assert "kinder" not in said  # all see the same levels
    assert "random:3 measured after every 2: its stretch sees fewer levels, a kinder rule" in (
        captions.caption(made(), 0.01)
    )
    spoken = dataclasses.replace(coarse, metric="perplexity", task="book", examples={"validation": 9})
    assert captions.under_title(spoken) == "book, validation, 9 blocks, every 2 heads"


def test_the_random_baseline_is_the_one_with_most_trials():
    trials = made().trials["random:3"]
    two = {"random:1": Trials(trials.removed, trials.accuracy[:1]), "random:3": trials}
    found = made(trials=two)
    assert found.random == "random:3"
    assert "random: random:3, which has the most trials" in captions.caption(found, 0.01)
    assert "most trials" not in captions.caption(made(), 0.01)
    one = by(summary(found), strategy="gnorm")["area over random"]
    assert one == by(summary(made()), strategy="gnorm")["area over random"]


def test_runs_of_one_model_are_told_apart_by_their_folders(tmp_path, capsys):
    runs = [made(source="first"), made(source="second"), made("other", source="third")]
    names = [one.model for one in distinct(runs)]
    assert names == ["toy (first)", "toy (second)", "other"]
    again = distinct([made(source="run"), made(source="run"), made()])
    assert [one.model for one in again] == ["toy (run)", "toy (run) (2)", "toy"]
    espalier.cli.report._print(Report(runs))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line in names] == names


def test_the_chosen_and_the_picked_points_are_marked():
    with style.look():
        figure = curves.draw([made()], 0.01, {"toy": 3})
    (axis,) = figure.axes
    marks = {line.get_marker(): [] for line in axis.lines}
    for line in axis.lines:
        marks[line.get_marker()] += list(zip(line.get_xdata(), line.get_ydata()))
    assert marks["|"] == [(1, 0.9)]  # the others may lose nothing
    assert marks["*"] == [(3, 0.8)]
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"the rule: within 1 point", "picked by hand"} <= set(named)


def test_scores_say_what_they_are():
    with style.look():
        figure = heat.draw(made())
    labels = [" ".join(a.get_ylabel().split()) for a in figure.axes[0].child_axes]
    assert labels == ["ln of the product of gradient norms"]


def test_a_better_perplexity_is_called_better():
    """gnorm lies below entropy everywhere: held as minus the logarithm, higher is better."""
    losses = {
        "gnorm": np.array([[2.0] * 40, [2.5] * 40, [3.0] * 40]),
        "entropy": np.array([[2.0] * 40, [2.2] * 40, [3.0] * 40]),
    }
    levels = dict.fromkeys(losses, (0, 2, 4))
    found = made(
        metric="perplexity",
        curves={x: Curve((0, 2, 4), tuple(-v.mean(1))) for x, v in losses.items()},
        trials={},
        test={},
        answers={"validation": Answers(None, levels, losses)},
    )
    row = by(comparisons(found), a="gnorm", b="entropy")
    assert row["difference"] == pytest.approx(-0.15)
    assert row["verdict"] == "b better"
    (line,) = hidden(found, boots=bootstraps(found))
    assert "entropy is better on average" in line
    assert "+15.00 to +15.00" in line
    assert "+ is better" in captions.caption(found, 0.01)
