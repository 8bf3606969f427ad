"""Run folders: rows of both versions read, checked and refused."""

import json
import math

import numpy as np
import pytest

from espalier.analysis import read_run
from espalier.analysis.curves import BASE, GRADUAL, ONE_SHOT, RECOVERED, Curve
from espalier.analysis.results import Cost
from espalier.core.errors import FolderError, FormatError, UnknownNameError

LABELS = {"validation": "0110", "test": "1100"}
GNORM, RANDOM = ("gnorm", ONE_SHOT), ("random:2", ONE_SHOT)


def row(method, k, predictions, *, trial=None, split="validation", order=(), units=4, **more):
    right = sum(a == b for a, b in zip(predictions, LABELS[split])) / 4
    return {
        "method": method,
        "phase": ONE_SHOT,
        "trial": trial,
        "removed": k / units,
        "split": split,
        "order": [list(unit) for unit in order],
        "metrics": {"accuracy": right},
        "predictions": predictions,
        "n": 4,
        "cost": {"units": units - k, "parameters": 1000 - 50 * k, "macs": 9 - k},
        "seconds": {"scoring": 0.5, "evaluating": 1.0},
        "seed": 0,
        **more,
    }


ROWS = [
    row("base", 0, "0110"),
    row("gnorm", 1, "0110", order=[(0, 1)]),
    row("gnorm", 2, "0111", order=[(1, 0)]),
    row("gnorm", 4, "1111", order=[(1, 1), (0, 0)]),
    row("random:2", 2, "0011", trial=0, order=[(0, 0), (1, 1)]),
    row("random:2", 4, "1111", trial=0, order=[(0, 1), (1, 0)]),
    row("random:2", 2, "0110", trial=1, order=[(1, 0), (1, 1)]),
    row("random:2", 4, "1111", trial=1, order=[(0, 1), (0, 0)]),
    row("base", 0, "1100", split="test"),
    row("gnorm", 1, "1101", split="test"),
    row("random:2", 0, "1100", split="test", trial=0),
]
HEAD = {
    "version": 2,
    "model": "toy",
    "metric": "accuracy",
    "target": "heads",
    "sites": [{"name": f"{i}/heads", "units": 2, "uses": 1} for i in range(2)],
    "methods": ["gnorm", "random:2"],
    "splits": {split: {"n": 4, "labels": labels} for split, labels in LABELS.items()},
    "tolerance": 0.02,
    "notes": ["three splits"],
}


def write_run(folder, rows=ROWS, tail="", head=HEAD, **more):
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps({**head, **more}))
    lines = "".join(json.dumps(r) + "\n" for r in rows)
    (folder / "rows.jsonl").write_text(lines + tail)
    return folder


def as_version_1(row):
    """A row of heads as version 1 wrote it."""
    same = ("trial", "split", "metrics", "predictions", "n", "seconds", "seed")
    old = {name: row[name] for name in same}
    k = round(4 * row["removed"])
    return {"strategy": row["method"], "k": k, "cut": row["order"], **old, **row["cost"]}


HEAD_1 = {
    **{name: HEAD[name] for name in ("model", "metric", "sites", "notes")},
    "version": 1,
    "kind": "heads",
    "strategies": HEAD["methods"],
    "parts": HEAD["splits"],
    "within": 0.02,
}


@pytest.mark.parametrize("version", [1, 2])
def test_a_run(tmp_path, version):
    old = {"rows": [as_version_1(r) for r in ROWS], "head": HEAD_1}
    found = read_run(write_run(tmp_path, **(old if version == 1 else {})))
    assert (found.model, found.metric, found.units, found.layers) == ("toy", "accuracy", 4, (2, 2))
    assert (found.target, found.tolerance, found.majority) == ("heads", 0.02, 0.5)
    assert found.methods == ["gnorm", "random:2"]
    assert found.curves == {
        (BASE, ONE_SHOT): Curve((0,), (1.0,)),
        GNORM: Curve((0, 0.25, 0.5, 1), (1.0, 1.0, 0.75, 0.5)),
        RANDOM: Curve.of_trials((0, 0.5, 1), ((1.0, 0.5, 0.5), (1.0, 1.0, 0.5))),
    }
    assert found.orders["gnorm"] == [(0, 1), (1, 0), (1, 1), (0, 0)]
    assert found.orders["random:2"] == [(0, 0), (1, 1), (0, 1), (1, 0)]  # of the first trial
    assert found.cost(GNORM, 0.5) == Cost(parameters=900, macs=7)
    assert found.cost(GNORM, 0).parameters == 1000
    assert found.cost(GNORM, 0).megabytes == 4000 / 2**20
    assert found.cost(GNORM, 0.75).parameters is None
    assert found.test == {(BASE, ONE_SHOT): {0: (1.0,)}, GNORM: {0.25: (0.75,)}, RANDOM: {0: (1.0,)}}
    assert found.seconds["gnorm"] == 1.5
    assert found.notes == ("three splits",)
    assert (found.lead, found.random, found.base) == ("gnorm", "random:2", 1.0)
    assert (found.chosen("gnorm", tolerance=0.01), found.count(0.25)) == (0.25, 1)
    assert found.curve("random:2").values == (1.0, 0.75, 0.5)
    assert found.first_trial("random:2").values == (1.0, 0.5, 0.5)
    valid = found.predictions["validation"]
    assert valid.truth.tolist() == [0, 1, 1, 0]
    assert valid.values[GNORM].shape == (1, 4, 4)
    assert valid.values[RANDOM].shape == (2, 3, 4)
    assert found.predictions["test"].values[GNORM].tolist() == [[[1, 1, 0, 0], [1, 1, 0, 1]]]


def weights_row(strategy, way, level, predictions, split="validation", **more):
    """A row of a study of single weights as version 1 wrote it."""
    right = sum(a == b for a, b in zip(predictions, LABELS[split])) / 4
    return {
        "strategy": strategy,
        "way": way,
        "level": level,
        "split": split,
        "metrics": {"accuracy": right, "loss": 1.0},
        "predictions": predictions,
        "n": 4,
        "zeros": int(8 * level),
        "weights": 8,
        "all_zeros": int(8 * level),
        "parameters": 10,
        "bytes": {"dense": 40, "sparse": 30},
        "compression": {"matrices": 1.0, "model": 1.0, "file": 1.0},
        "seconds": {"evaluating": 1.0, "training": 2.0},
        "seed": 0,
        **more,
    }


WEIGHTS_1 = {
    **HEAD_1,
    "kind": "weights",
    "study": "sparsity",
    "also": ["embeddings"],
    "strategies": ["magnitude", "movement"],
    "training": {"epochs": 1, "examples": None, "batch": 32, "rate": 1e-3, "refresh": 4},
}


def test_a_study_of_weights_of_version_1(tmp_path):
    rows = [
        weights_row("base", ONE_SHOT, 0.0, "0110"),
        weights_row("base", RECOVERED, 0.0, "0111"),
        weights_row("magnitude", ONE_SHOT, 0.5, "0011"),
        weights_row("magnitude", RECOVERED, 0.5, "0110"),
        weights_row("movement", GRADUAL, 0.75, "0111", schedule="cubic", refresh=4),
        weights_row("base", ONE_SHOT, 0.0, "1100", split="test"),
        weights_row("magnitude", RECOVERED, 0.5, "1101", split="test"),
    ]
    found = read_run(write_run(tmp_path, rows, head=WEIGHTS_1))
    assert (found.target, found.counted, found.layers, found.orders) == ("weights", False, (), {})
    assert found.phases == [ONE_SHOT, RECOVERED, GRADUAL]
    assert (found.methods, found.also) == (["magnitude", "movement"], ("embeddings",))
    assert found.curves[BASE, RECOVERED] == Curve((0,), (0.75,))
    assert found.curve("magnitude", RECOVERED) == Curve((0, 0.5), (1.0, 1.0))
    assert found.curve("movement", GRADUAL).removed == (0, 0.75)
    assert found.training == {
        "epochs": 1,
        "examples": None,
        "batch_size": 32,
        "lr": 1e-3,
        "mask_interval": 4,
    }
    details = found.details["movement", GRADUAL][0.75]
    assert (details["schedule"], details["mask_interval"], details["seconds"]) == ("cubic", 4, 3.0)
    cost = found.cost(("magnitude", ONE_SHOT), 0.5)
    assert cost.compression(found.cost((BASE, ONE_SHOT), 0.0)) == {
        "matrices": 2.0,
        "model": 10 / 6,
        "file": 4 / 3,
    }
    assert found.predictions["test"].removed["magnitude", RECOVERED] == (0, 0.5)
    with pytest.raises(UnknownNameError) as error:
        found.curve("movement")
    assert (error.value.parameter, error.value.name) == ("method", "movement one-shot")


def test_nothing_left_of_the_matrices_has_no_ratio():
    empty = Cost(parameters=10, zeros=8, weights=8, all_zeros=8)
    assert empty.compression(Cost(parameters=10)) == {"matrices": None, "model": 5.0, "file": None}


def test_an_incomplete_last_line_is_not_read(tmp_path):
    whole = json.dumps(ROWS[3])
    for cut in (1, 20, len(whole) - 1):
        found = read_run(write_run(tmp_path, ROWS[:3], tail=whole[:cut]))
        assert found.curve("gnorm").removed == (0, 0.25, 0.5)
    with (tmp_path / "rows.jsonl").open("ab") as file:
        file.write("é".encode()[:1])  # half a letter
    assert read_run(tmp_path).curve("gnorm").removed == (0, 0.25, 0.5)


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path):
    folder = write_run(tmp_path)
    lines = (folder / "rows.jsonl").read_text().splitlines()
    lines[2] = lines[2][:30]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(FormatError, match="line 3") as error:
        read_run(folder)
    assert error.value.path == folder / "rows.jsonl"


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": {"f1": 1.0}},
        {"metrics": {"accuracy": "high"}},
        {"metrics": {"accuracy": float("nan")}},
        {"removed": None},
        {"removed": 1.25},
        {"removed": -0.5},
        {"phase": "soon"},
        {"order": [[0, 1]]},
        {"order": [[1, 0], [1, 0]]},
        {"order": [[2, 0]]},
        {"predictions": "011"},
        {"predictions": "01!0"},
        {"version": 3},
        {"version": True},
        {"method": 5},
        {"method": ""},
        {"trial": True},
        {"trial": -1},
        {"trial": "0"},
        {"removed": True},
        {"removed": "0.5"},
        {"removed": 0.4},
        {"split": "train"},
        {"split": None},
        {"metrics": None},
        {"metrics": [1.0]},
        {"metrics": {"accuracy": float("inf")}},
        {"metrics": {"accuracy": None}},
        {"order": "all"},
        {"order": None},
        {"order": [[1, 0.0]]},
        {"order": [[1, True]]},
        {"order": [[1, -1]]},
        {"order": [[0, 1]] * 2},
        {"order": [[10**30, 0]]},
        {"predictions": 3},
        {"predictions": [0, 1, 1, None]},
        {"predictions": "\udc80110"},
        {"seconds": [1]},
        {"seconds": {"scoring": "long"}},
        {"cost": 7},
        {"cost": {"parameters": "many"}},
        {"cost": {"bytes": 12, "parameters": []}},
        {"n": -4},
        {"seed": "x"},
        {"schedule": []},
        {"method": "base"},
    ],
)
def test_wrong_rows_are_refused(tmp_path, change):
    rows = [*ROWS[:2], {**ROWS[2], **change}, *ROWS[3:]]
    with pytest.raises(FormatError) as error:
        read_run(write_run(tmp_path, rows))
    assert error.value.path == tmp_path / "rows.jsonl"
    assert "line 3" in str(error.value) or "version" in change


@pytest.mark.parametrize("line", ["{", "[]", "7", "null", "", '{"a": NaN}', "[" * 100_000, '"\udc80'])
def test_a_damaged_line_is_reported_with_its_number(tmp_path, line):
    folder = write_run(tmp_path)
    lines = (folder / "rows.jsonl").read_text().splitlines()
    text = "\n".join([*lines[:4], line, *lines[4:]]) + "\n"
    (folder / "rows.jsonl").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(FormatError, match="line 5") as error:
        read_run(folder)
    assert error.value.path == folder / "rows.jsonl"


def test_wrong_runs_are_refused(tmp_path):
    with pytest.raises(FolderError) as missing:
        read_run(tmp_path / "nothing")
    assert missing.value.path == tmp_path / "nothing" / "run.json"
    with pytest.raises(FormatError) as error:
        read_run(write_run(tmp_path, ROWS[1:]))  # no row of the unpruned model
    assert error.value.path == tmp_path / "rows.jsonl"


@pytest.mark.parametrize(
    "change",
    [
        {"sites": None},
        {"sites": []},
        {"sites": [1, 2]},
        {"sites": [{"name": "a"}]},
        {"sites": [{"units": 0}]},
        {"sites": [{"units": -2}, {"units": 6}]},
        {"sites": [{"units": 2.0}, {"units": 2}]},
        {"sites": [{"units": True}, {"units": 3}]},
        {"sites": [{"units": 10**12}]},
        {"sites": [{"units": 10**30}]},
        {"sites": [{"units": 2, "uses": 0}, {"units": 2}]},
        {"metric": "luck"},
        {"metric": 7},
        {"metric": None},
        {"model": None},
        {"model": ["toy"]},
        {"target": 5},
        {"methods": "gnorm"},
        {"methods": [["gnorm"]]},
        {"splits": []},
        {"splits": {"validation": "0110"}},
        {"splits": {"validation": {"n": "4"}}},
        {"splits": {"validation": {"n": 4, "labels": "01!0"}}},
        {"splits": {"validation": {"n": 4, "labels": "011"}}},
        {"splits": {"validation": {"n": 4, "labels": [0, 1, 1, "0"]}}},
        {"splits": {"validation": {"n": 0, "labels": ""}}},
        {"tolerance": float("inf")},
        {"tolerance": [0.01]},
        {"training": {"epochs": 1}},
        {"training": "long"},
        {"settings": {"gnorm": 3}},
        {"settings": {"gnorm": {"rescore": True, "step": "many"}}},
        {"also": "head"},
        {"notes": "three splits"},
        {"version": 3},
        {"version": "2"},
        {"version": True},
        {"version": 2.0},
    ],
)
def test_wrong_run_files_are_refused(tmp_path, change):
    with pytest.raises(FormatError) as error:
        read_run(write_run(tmp_path, **change))
    assert error.value.path == tmp_path / "run.json"


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "7", "{}", '{"version": 2}', "[" * 100_000, '{"a": ' * 10**5]
)
def test_run_files_that_are_no_runs(tmp_path, text):
    write_run(tmp_path)
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(FormatError) as error:
        read_run(tmp_path)
    assert error.value.path == tmp_path / "run.json"


def test_unfinished_trials_are_left_out_with_a_note(tmp_path):
    rows = [*ROWS, row("random:2", 2, "0110", trial=2, order=[(0, 0), (1, 0)])]
    found = read_run(write_run(tmp_path, rows))
    assert len(found.curve("random:2").trials) == 2
    assert found.predictions["validation"].values[RANDOM].shape == (2, 3, 4)
    assert len(found.notes) == 2


@pytest.mark.parametrize(
    ("number", "again"),
    [
        (4, row("gnorm", 2, "0111", order=[(1, 0)])),  # one line twice
        (4, row("gnorm", 2, "0110", order=[])),
        (6, row("gnorm", 2, "0111", order=[(1, 0)])),  # of two programs at the same time
        (12, row("gnorm", 1, "1101", split="test")),
        (12, row("base", 0, "1100", split="test")),
        (5, row("gnorm", 3, "1111", order=[(1, 1)])),  # after all four
        (2, row("gnorm", 2, "0111", order=[(1, 0), (0, 1)])),  # before the first
    ],
)
def test_rows_that_do_not_follow_are_refused_before_anything_is_computed(tmp_path, number, again):
    rows = [*ROWS[: number - 1], again, *ROWS[number - 1 :]]
    with pytest.raises(FormatError, match=r"line \d+") as error:
        read_run(write_run(tmp_path, rows))
    assert error.value.path == tmp_path / "rows.jsonl"


def test_perplexity_is_held_as_minus_its_logarithm(tmp_path):
    found = ((10.0, math.log(10)), (10.05, 2.3), (12.0, 2.4), (None, 800.0))
    orders = ([], [(0, 1)], [(0, 0)], [(1, 0)])
    rows = [row("gnorm" if k else "base", k, "0110", order=order) for k, order in enumerate(orders)]
    for r, (perplexity, loss), block in zip(rows, found, (2.3, 2.31, 2.5, 800.0)):
        r.update(metrics={"perplexity": perplexity, "loss": loss}, predictions=[block] * 4)
    splits = {"validation": {"n": 4, "labels": None}}
    results = read_run(write_run(tmp_path, rows, metric="perplexity", splits=splits))
    want = (-math.log(10), -math.log(10.05), -math.log(12), -800)
    assert results.curve("gnorm").values == pytest.approx(want)
    assert results.show(results.curve("gnorm").at(0.5)) == pytest.approx(12)
    assert results.chosen("gnorm", tolerance=0.01) == 0.25  # half a percent is within one, a fifth is not
    assert results.predictions["validation"].truth is results.majority is None
    assert results.predictions["validation"].values[GNORM][0, 2, 0] == 2.5


def test_many_classes_are_lists(tmp_path):
    rows = [row("base", 0, "0110"), row("gnorm", 1, "0110", order=[(0, 1)])]
    for r in rows:
        r["predictions"] = [40, 41, 3, 0]
    splits = {"validation": {"n": 4, "labels": [40, 41, 41, 0]}}
    found = read_run(write_run(tmp_path, rows, splits=splits)).predictions["validation"]
    assert (found.values[GNORM] == found.truth).sum() == 6


def test_maps_of_a_run(tmp_path):
    folder = write_run(tmp_path)
    scores = [{"criterion": "gnorm", "method": "gnorm", "removed": 0, "scores": [[1, None], [2.5, -3]]}]
    other = "gnorm:objective=loss"
    scores.append({"criterion": "gnorm", "strategy": other, "k": 0, "scores": [[0, 0]] * 2})
    (folder / "scores.jsonl").write_text("".join(json.dumps(s) + "\n" for s in scores) + '{"cri')
    pooled = {"cut": [[0, 0]], "roles": ["q"], "change": {"0,0": {"q": [[0, 1], [2, 3]]}}}
    (folder / "pooling.json").write_text(json.dumps(pooled))
    found = read_run(folder)
    assert list(found.scores) == ["gnorm", other]
    assert np.isnan(found.scores["gnorm"][0, 1])
    assert found.scores["gnorm"][1].tolist() == [2.5, -3]
    assert found.pooling[0, 0]["q"].tolist() == [[0, 1], [2, 3]]
    (folder / "pooling.json").write_text(json.dumps({**pooled, "roles": ["q", "k"]}))
    with pytest.raises(FormatError) as error:
        read_run(folder)
    assert error.value.path == folder / "pooling.json"
    (folder / "pooling.json").unlink()
    (folder / "scores.jsonl").write_text('{"criterion": "gnorm", "removed": 0, "scores": [[1, 2, 3]]}\n')
    with pytest.raises(FormatError) as error:
        read_run(folder)
    assert error.value.path == folder / "scores.jsonl"
