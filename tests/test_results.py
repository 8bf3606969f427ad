"""Results read from run folders and published files, and written as published files again."""

import json
import math
import zipfile

import numpy as np
import pytest

from espalier.analysis.curves import Curve, Trials
from espalier.analysis.results import Results, read_run
from espalier.core.errors import EspalierError
from espalier.reproductions.greedy_gnorm.published import (
    file_safe,
    read_published,
    strategy_file,
    strategy_label,
    write_published,
)

LABELS = {"validation": "0110", "test": "1100"}
BERT = {
    "parameters": 10_000,
    "parameters_per_unit": 100,
    "units": 4,
    "uses": 1,
    "layers": [2, 2],
}


def row(strategy, k, predictions, *, trial=None, split="validation", cut=(), **more):
    right = sum(a == b for a, b in zip(predictions, LABELS[split])) / 4
    return {
        "strategy": strategy,
        "trial": trial,
        "k": k,
        "split": split,
        "cut": [list(unit) for unit in cut],
        "metrics": {"accuracy": right},
        "predictions": predictions,
        "n": 4,
        "parameters": 1000 - 50 * k,
        "macs": 9 - k,
        "seconds": {"scoring": 0.5, "evaluating": 1.0},
        **more,
    }


ROWS = [
    row("base", 0, "0110"),
    row("gnorm", 1, "0110", cut=[(0, 1)]),
    row("gnorm", 2, "0111", cut=[(1, 0)]),
    row("gnorm", 4, "1111", cut=[(1, 1), (0, 0)]),
    row("random:2", 2, "0011", trial=0, cut=[(0, 0), (1, 1)]),
    row("random:2", 4, "1111", trial=0, cut=[(0, 1), (1, 0)]),
    row("random:2", 2, "0110", trial=1, cut=[(1, 0), (1, 1)]),
    row("random:2", 4, "1111", trial=1, cut=[(0, 1), (0, 0)]),
    row("base", 0, "1100", split="test"),
    row("gnorm", 1, "1101", split="test"),
    row("random:2", 0, "1100", split="test", trial=0),
]


def write_run(folder, rows=ROWS, tail="", **head):
    folder.mkdir(exist_ok=True)
    about = {
        "version": 1,
        "model": "toy",
        "metric": "accuracy",
        "kind": "heads",
        "sites": [{"name": f"{i}/heads", "units": 2, "uses": 1} for i in range(2)],
        "strategies": ["gnorm", "random:2"],
        "parts": {part: {"n": 4, "labels": labels} for part, labels in LABELS.items()},
        "notes": ["three parts"],
        **head,
    }
    (folder / "run.json").write_text(json.dumps(about))
    lines = "".join(json.dumps(r) + "\n" for r in rows)
    (folder / "rows.jsonl").write_text(lines + tail)
    return folder


# -------------------------------------------------------------------------------------- run folders


def test_a_run(tmp_path):
    found = read_run(write_run(tmp_path))
    assert (found.model, found.metric, found.units, found.layers) == ("toy", "accuracy", 4, (2, 2))
    assert found.curves == {"gnorm": Curve((0, 1, 2, 4), (1.0, 1.0, 0.75, 0.5))}
    assert found.trials == {"random:2": Trials((0, 2, 4), ((1.0, 0.5, 0.5), (1.0, 1.0, 0.5)))}
    assert found.orders == {"gnorm": [(0, 1), (1, 0), (1, 1), (0, 0)]}
    assert found.cost("gnorm", 2) == (900, 7)
    assert found.cost("gnorm", 0).parameters == 1000
    assert found.cost("gnorm", 0).megabytes == 4000 / 2**20
    assert found.cost("gnorm", 3).parameters is None
    assert found.test == {"base": {0: (1.0,)}, "gnorm": {1: (0.75,)}, "random:2": {0: (1.0,)}}
    assert found.seconds["gnorm"] == 1.5
    assert found.notes == ("three parts",)
    assert (found.lead, found.random, found.base) == ("gnorm", "random:2", 1.0)
    assert found.chosen("gnorm", 0.01) == 1
    assert found.curve("random:2").accuracy == (1.0, 0.75, 0.5)
    valid = found.answers["validation"]
    assert valid.truth.tolist() == [0, 1, 1, 0]
    assert valid.guesses["gnorm"].shape == (4, 4)
    assert valid.guesses["random:2"].shape == (2, 3, 4)
    assert found.answers["test"].guesses["gnorm"].tolist() == [[1, 1, 0, 0], [1, 1, 0, 1]]


def test_a_torn_last_line_is_not_there(tmp_path):
    whole = json.dumps(ROWS[3])
    for cut in (1, 20, len(whole) - 1):
        found = read_run(write_run(tmp_path, ROWS[:3], tail=whole[:cut]))
        assert found.curves["gnorm"].removed == (0, 1, 2)
    with (tmp_path / "rows.jsonl").open("ab") as file:
        file.write("é".encode()[:1])  # torn inside a letter
    assert read_run(tmp_path).curves["gnorm"].removed == (0, 1, 2)


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path):
    folder = write_run(tmp_path)
    lines = (folder / "rows.jsonl").read_text().splitlines()
    lines[2] = lines[2][:30]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(EspalierError, match=r"line 3 of .*rows\.jsonl"):
        read_run(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": {"f1": 1.0}}, r"line 3 is not a row of a run: no 'accuracy'"),
        ({"metrics": {"accuracy": "high"}}, "line 3"),
        ({"metrics": {"accuracy": float("nan")}}, "line 3.*accuracy is nan"),
        ({"k": None}, "line 3"),
        ({"k": 5}, "line 3.*5 units removed of 4"),
        ({"cut": [[0, 1]]}, "line 3: 2 units are said to be gone, but .* 1 different"),
        ({"cut": [[1, 0], [1, 0]]}, "line 3: 2 units are said to be gone"),
        ({"cut": [[2, 0]]}, "no unit 0 in layer 2"),
        ({"predictions": "011"}, "line 3: 3 predictions"),
        ({"predictions": "01!0"}, "line 3: broken predictions"),
    ],
)
def test_wrong_rows_are_named(tmp_path, change, message):
    rows = [*ROWS[:2], {**ROWS[2], **change}, *ROWS[3:]]
    with pytest.raises(EspalierError, match=message):
        read_run(write_run(tmp_path, rows))


def test_wrong_heads_are_named(tmp_path):
    with pytest.raises(EspalierError, match=r"cannot read .*run\.json"):
        read_run(tmp_path / "nothing")
    with pytest.raises(EspalierError, match="not the head of a run"):
        read_run(write_run(tmp_path, sites=None))
    with pytest.raises(EspalierError, match="version 2; this espalier reads up to 1"):
        read_run(write_run(tmp_path, version=2))
    with pytest.raises(EspalierError, match="no row of the unpruned model yet"):
        read_run(write_run(tmp_path, ROWS[1:]))


def test_unfinished_trials_are_left_out_and_said(tmp_path):
    found = read_run(write_run(tmp_path, [*ROWS, row("random:2", 2, "0110", trial=2, cut=[(0, 0)] * 2)]))
    assert len(found.trials["random:2"].accuracy) == 2
    assert found.answers["validation"].guesses["random:2"].shape == (2, 3, 4)
    assert found.notes[-1] == "random:2: unfinished trials left out: 1"


def test_a_level_measured_twice_counts_once(tmp_path):
    again = row("gnorm", 2, "0110", cut=[(1, 0)])
    found = read_run(write_run(tmp_path, [*ROWS[:3], again, *ROWS[3:]]))
    assert found.curves["gnorm"].accuracy == (1.0, 1.0, 1.0, 0.5)
    assert len(found.orders["gnorm"]) == 4


def test_perplexity_is_held_as_minus_its_logarithm(tmp_path):
    rows = [
        {**row("base", 0, "0110"), "metrics": {"perplexity": 10.0, "loss": math.log(10)}},
        {**row("gnorm", 1, "0110", cut=[(0, 1)]), "metrics": {"perplexity": 10.05, "loss": 2.3}},
        {**row("gnorm", 2, "0110", cut=[(0, 0)]), "metrics": {"perplexity": 12.0, "loss": 2.4}},
        {
            **row("gnorm", 3, "0110", cut=[(1, 0)]),
            "metrics": {"perplexity": math.inf, "loss": 800.0},
        },
    ]
    for r, loss in zip(rows, (2.3, 2.31, 2.5, 800.0)):
        r["predictions"] = [loss] * 4
    parts = {"validation": {"n": 4, "labels": None}}
    found = read_run(write_run(tmp_path, rows, metric="perplexity", parts=parts))
    assert found.curves["gnorm"].accuracy == pytest.approx(
        (-math.log(10), -math.log(10.05), -math.log(12), -800)
    )
    assert found.show(found.curves["gnorm"].at(2)) == pytest.approx(12)
    assert found.chosen("gnorm", 0.01) == 1  # half a percent is within one, a fifth is not
    assert found.answers["validation"].truth is None
    assert found.answers["validation"].guesses["gnorm"][2, 0] == 2.5


def test_many_classes_are_lists(tmp_path):
    rows = [row("base", 0, "0110"), row("gnorm", 1, "0110", cut=[(0, 1)])]
    for r in rows:
        r["predictions"] = [40, 41, 3, 0]
    parts = {"validation": {"n": 4, "labels": [40, 41, 41, 0]}}
    found = read_run(write_run(tmp_path, rows, parts=parts)).answers["validation"]
    assert (found.guesses["gnorm"] == found.truth).sum() == 6


def test_maps_beside_the_run(tmp_path):
    folder = write_run(tmp_path)
    scores = [{"criterion": "gnorm", "strategy": "gnorm", "k": 0, "scores": [[1, None], [2.5, -3]]}]
    scores.append({"criterion": "gnorm", "strategy": "gnorm:objective=loss", "k": 0, "scores": [[0, 0]] * 2})
    (folder / "scores.jsonl").write_text("".join(json.dumps(s) + "\n" for s in scores) + '{"cri')
    pooled = {"cut": [[0, 0]], "roles": ["q"], "change": {"0,0": {"q": [[0, 1], [2, 3]]}}}
    (folder / "pooling.json").write_text(json.dumps(pooled))
    found = read_run(folder)
    assert list(found.scores) == ["gnorm", "gnorm:objective=loss"]
    assert np.isnan(found.scores["gnorm"][0, 1])
    assert found.scores["gnorm"][1].tolist() == [2.5, -3]
    assert found.pooling[0, 0]["q"].tolist() == [[0, 1], [2, 3]]
    (folder / "pooling.json").write_text(json.dumps({**pooled, "roles": ["q", "k"]}))
    with pytest.raises(EspalierError, match=r"pooling\.json is damaged"):
        read_run(folder)
    (folder / "pooling.json").unlink()
    (folder / "scores.jsonl").write_text('{"criterion": "gnorm", "k": 0, "scores": [[1, 2, 3]]}\n')
    with pytest.raises(EspalierError, match="gnorm scores 1 × 3 units; the model has 2 × 2"):
        read_run(folder)


# --------------------------------------------------------------------------------- published files


def shape_of(model):
    shared = {**BERT, "units": 4, "uses": 3, "layers": [4]}
    return {"BERT": BERT, "ALBERT": shared, "COUNTED": {**BERT, "layers": 2}}.get(model)


def curve_file(folder, text, model="BERT", strategy="GreedyGnorm"):
    path = folder / f"pruned_heads_accuracy({model})basedon{strategy}.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def trials_file(folder, rows, name="BERTrandompruned_heads_data_2x3_1group.xlsx"):
    import openpyxl

    book = openpyxl.Workbook()
    book.active.title = "Sheet1"
    for line in rows:
        book.active.append(line)
    book.save(folder / name)
    return folder / name


GOOD = "Pruned_Heads,Accuracy\r\n0,0.9\r\n2,0.8\r\n4,0.5\r\n"
TRIALS = [["Heads Pruned", "Trial_1", "Trial_2"], [0, 0.9, 0.9], [2, 0.7, 0.6], [4, 0.5, 0.5]]


def test_published_files(tmp_path):
    for strategy in ("AE", "AEinverse", "GreedyGnorm", "InverseGreedyGnorm", "Mine"):
        curve_file(tmp_path, GOOD, strategy=strategy)
    trials_file(tmp_path, TRIALS)
    order = {"layers": 2, "heads": 2, "order": [[1, 1], [0, 0], [0, 1], [1, 0]]}
    (tmp_path / "orders.json").write_text(json.dumps({"BERT": {"AE": order}, "OTHER": {}}))
    (found,) = read_published(tmp_path, shape_of)
    assert list(found.curves) == ["gnorm", "gnorm:reverse", "entropy", "entropy:reverse", "Mine"]
    assert found.curves["Mine"] == Curve((0, 2, 4), (0.9, 0.8, 0.5))
    assert found.trials == {"random:2": Trials((0, 2, 4), ((0.9, 0.7, 0.5), (0.9, 0.6, 0.5)))}
    assert found.orders == {"entropy": [(1, 1), (0, 0), (0, 1), (1, 0)]}
    assert found.cost("gnorm", 4).parameters == 9600
    assert (found.layers, found.answers) == ((2, 2), {})


def test_layers_may_be_counted(tmp_path):
    curve_file(tmp_path, GOOD, model="COUNTED")
    assert read_published(tmp_path, shape_of)[0].layers == (2, 2)


def test_uses_become_units_and_uses_again(tmp_path):
    curve_file(tmp_path, "Pruned_Heads,Accuracy\r\n0,0.9\r\n3,0.8\r\n12,0.5\r\n", model="ALBERT")
    (found,) = read_published(tmp_path, shape_of)
    assert found.curves["gnorm"].removed == (0, 1, 4)
    assert (found.units, found.uses) == (4, 3)
    write_published(found, tmp_path / "again")
    (file,) = (tmp_path / "again").iterdir()
    assert file.read_bytes() == next(tmp_path.glob("*.csv")).read_bytes()
    curve_file(tmp_path, "Pruned_Heads,Accuracy\n0,0.9\n1,0.8\n4,0.5\n", model="ALBERT")
    assert read_published(tmp_path, shape_of)[0].curves["gnorm"].removed == (0, 1, 4)


def test_groups_are_joined_unless_they_were(tmp_path):
    first = trials_file(tmp_path, TRIALS)
    more = [[*line, line[-1]] for line in TRIALS[1:]]
    second = "BERTrandompruned_heads_data_2x3_2group.xlsx"
    trials_file(tmp_path, [["Heads Pruned", "Trial_1", "Trial_2", "Trial_3"], *more], second)
    (found,) = read_published(tmp_path, shape_of)
    assert len(found.trials["random:5"].accuracy) == 5
    trials_file(tmp_path, TRIALS, "BERTrandompruned_heads_data_2x3_concated.xlsx")
    assert list(read_published(tmp_path, shape_of)[0].trials) == ["random:2"]
    assert list(read_published([first], shape_of)[0].trials) == ["random:2"]
    for file in tmp_path.glob("*concated*"):
        file.unlink()
    trials_file(tmp_path, [TRIALS[0], TRIALS[1], TRIALS[3]], second)
    with pytest.raises(EspalierError, match="other levels"):
        read_published(tmp_path, shape_of)


def results(**more):
    return Results(
        **{
            "model": "BERT",
            "metric": "accuracy",
            "units": 4,
            "layers": (2, 2),
            "curves": {
                "gnorm": Curve((0, 1, 2), (0.9, 1 / 3, 0.1)),
                "gnorm:static": Curve((0, 4), (0.9, 0.5)),
            },
            "trials": {"random:2": Trials((0, 4), ((0.9, 0.5), (0.9, 2 / 3)))},
            "orders": {"gnorm": [(0, 1), (1, 1)], "gnorm:static": [(0, 0)]},
            **more,
        }
    )


@pytest.mark.parametrize(
    ("model", "layers", "uses"),
    [
        ("BERT", (2, 2), 1),
        ("org/name: a*b?", (3, 1), 1),
        ("$(x) %41 ä\n", (4,), 12),
        ("..", (4,), 1),
    ],
)
def test_there_and_back(tmp_path, model, layers, uses):
    orders = {"gnorm": [(0, 1), (0, 0)], "gnorm:static": [(0, 2 if max(layers) > 2 else 0)]}
    mine = results(model=model, layers=layers, uses=uses, orders=orders)
    files = write_published(mine, tmp_path / "out")
    write_published(results(model="second"), tmp_path / "out")  # beside it, not over it
    assert all(file.parent == tmp_path / "out" for file in files)
    assert not set('/\\:*?"<>|\n') & set("".join(file.name for file in files))
    found = {r.model: r for r in read_published(tmp_path / "out", shape_of)}
    assert set(found) == {model, "second"}
    for name in ("curves", "trials", "orders", "layers", "units", "uses"):
        assert getattr(found[model], name) == getattr(mine, name), name


def test_what_is_written_is_what_they_read(tmp_path):
    names = {file.name for file in write_published(results(), tmp_path)}
    assert names == {
        "pruned_heads_accuracy(BERT)basedonGreedyGnorm.csv",
        "pruned_heads_accuracy(BERT)basedongnorm-static.csv",
        "BERTrandompruned_heads_data_2x2_1group.xlsx",
        "orders.json",
    }
    text = (tmp_path / "pruned_heads_accuracy(BERT)basedonGreedyGnorm.csv").read_bytes()
    assert text == b"Pruned_Heads,Accuracy\r\n0,0.9\r\n1,0.3333333333333333\r\n2,0.1\r\n"
    import openpyxl

    sheet = openpyxl.load_workbook(tmp_path / "BERTrandompruned_heads_data_2x2_1group.xlsx")["Sheet1"]
    assert [c.value for c in sheet[1]] == ["Heads Pruned", "Trial_1", "Trial_2"]
    assert [c.value for c in sheet[3]] == [4, 0.5, 2 / 3]


def test_only_accuracies_are_published(tmp_path):
    with pytest.raises(EspalierError, match="hold accuracies; BERT was measured by perplexity"):
        write_published(results(metric="perplexity"), tmp_path)
    two = {"random:1": Trials((0, 4), ((0.9, 0.5),)), "random:2": Trials((0, 2), ((0.9, 0.5),))}
    with pytest.raises(EspalierError, match="random:1 and random:2 have different levels"):
        write_published(results(trials=two), tmp_path)


def test_file_names():
    assert file_safe("XLM_ROBERTA") == "XLM_ROBERTA"
    assert file_safe("a/b\\c:d") == "a%2Fb%5Cc%3Ad"
    assert file_safe("") == "model"


@pytest.mark.parametrize(
    ("label", "file"),
    [
        ("gnorm:static", "gnorm-static"),
        ("taylor:step=4:reverse", "taylor-step=4-reverse"),
        ("my-own", "my-own"),
        ("my-own:static", "my-own-static"),
        ("too-static", "too%2Dstatic"),
        ("./mine.py:greedy", ".%2Fmine.py%3Agreedy"),
    ],
)
def test_strategies_name_files_that_can_be_read_back(label, file):
    assert strategy_file(label) == file
    assert strategy_label(file) == label


def test_older_files_name_a_strategy_with_percent_signs():
    assert strategy_label("gnorm%3Astatic") == "gnorm:static"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected a CSV file with the header Pruned_Heads,Accuracy"),
        ("Pruned_Heads,Accuracy\r\n", "is empty"),
        ("Heads,Acc\r\n0,0.9\r\n", "begins with 'Heads,Acc'; expected"),
        ("Pruned_Heads,Accuracy\r\n0,0.9\r\n1,high\r\n", "row 3: 'high' is not an accuracy"),
        ("Pruned_Heads,Accuracy\r\n0,0.9\r\n1,nan\r\n", "row 3: 'nan' is not an accuracy"),
        ("Pruned_Heads,Accuracy\r\n0,90.1\r\n", "row 2: '90.1' is not an accuracy from 0 to 1"),
        ("Pruned_Heads,Accuracy\r\n0,0.9\r\n1.5,0.8\r\n", "row 3: '1.5' is not a number of pruned"),
        ("Pruned_Heads,Accuracy\r\n0,0.9\r\n1\r\n", "row 3 has 1 cells"),
        ("Pruned_Heads,Accuracy\r\n1,0.9\r\n", "starts with nothing removed"),
        (
            "Pruned_Heads,Accuracy\r\n0,0.9\r\n9,0.8\r\n",
            "9 heads are said to be pruned, but BERT has 4",
        ),
        (b"\xff\xfe\x00\x01", "is not text"),
    ],
)
def test_bad_curve_files(tmp_path, text, message):
    curve_file(tmp_path, text)
    with pytest.raises(EspalierError, match=message) as error:
        read_published(tmp_path, shape_of)
    assert "basedonGreedyGnorm.csv" in str(error.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "is empty; expected a sheet with the columns Heads Pruned, Trial_1"),
        ([["Heads Pruned", "Trial_1"]], "is empty"),
        ([["Heads", "Trial_1"], [0, 0.9]], "has the columns 'Heads, Trial_1'; expected"),
        ([["Heads Pruned", "A"], [0, 0.9]], "has the columns 'Heads Pruned, A'; expected"),
        ([["Heads Pruned", "Trial_1"], [0, "much"]], "row 2: 'much' is not an accuracy"),
        ([["Heads Pruned", "Trial_1"], [0, None]], "row 2: None is not an accuracy"),
        ([["Heads Pruned", "Trial_1"], ["none", 0.9]], "row 2: 'none' is not a number"),
        ([["Heads Pruned", "Trial_1"], [2, 0.9]], "starts with nothing removed"),
    ],
)
def test_bad_trials_files(tmp_path, rows, message):
    path = trials_file(tmp_path, rows)
    with pytest.raises(EspalierError, match=message) as error:
        read_published(tmp_path, shape_of)
    assert path.name in str(error.value)


def test_not_a_workbook(tmp_path):
    path = tmp_path / "BERTrandompruned_heads_data_2x3_1group.xlsx"
    for content in (b"", b"Heads Pruned,Trial_1\n"):
        path.write_bytes(content)
        with pytest.raises(EspalierError, match=r"is not an \.xlsx workbook .*expected a sheet"):
            read_published(tmp_path, shape_of)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello.txt", "hello")
    with pytest.raises(EspalierError, match=r"is not an \.xlsx workbook"):
        read_published(tmp_path, shape_of)


def test_bad_orders(tmp_path):
    curve_file(tmp_path, GOOD)
    for order, message in (
        ([[0, 0], [0, 0]], "names a unit twice"),
        ([[5, 0]], "removes unit 0 of layer 5"),
        ("none", "damaged"),
    ):
        entry = {"layers": 2, "heads": 2, "order": order}
        (tmp_path / "orders.json").write_text(json.dumps({"BERT": {"AE": entry}}))
        with pytest.raises(EspalierError, match=message):
            read_published(tmp_path, shape_of)
    entry = {"layers": 3, "heads": 2, "order": [[2, 0]]}
    (tmp_path / "orders.json").write_text(json.dumps({"BERT": {"AE": entry}}))
    with pytest.raises(EspalierError, match="3 layers of 2 heads for BERT by entropy"):
        read_published(tmp_path, shape_of)


def test_nothing_there(tmp_path):
    with pytest.raises(EspalierError, match="no published results in"):
        read_published(tmp_path, shape_of)
    with pytest.raises(EspalierError, match="there is no folder"):
        read_published(tmp_path / "none", shape_of)
