"""Tolerances in three spellings, results at chance, sizes in the stored dtype, and a folder used again."""

import json
import math

import pytest
import torch
import toys
from test_results import HEAD, ROWS, row, write_run

import espalier
from espalier.analysis import read_run
from espalier.analysis.curves import Curve, allowed_drop, parse_tolerance
from espalier.core.errors import ConflictError, FolderError, FormatError, InvalidValueError
from espalier.experiment.recovery import Recovery
from espalier.io.rows import read_rows
from espalier.reports import Report
from espalier.storage.resolve import config_of
from espalier.training import loop

QUICK = {"calibration": 8, "validation": 20, "test": 20, "max_length": 16}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        *((0.01, 0.01), ("0.01", 0.01), ("1pt", 0.01), ("1 PT", 0.01), ("2.5pt", 0.025), ("1%", "1%")),
        *((" 0.5 % ", "0.5%"), (0, 0.0), ("0", 0.0), ("0pt", 0.0), ("1e-3", 1e-3), (1e-5, 1e-5), (".5", 0.5)),
    ],
)
def test_tolerances(given, found):
    assert parse_tolerance(given) == pytest.approx(found) if isinstance(found, float) else found
    assert parse_tolerance(parse_tolerance(given)) == parse_tolerance(given)


@pytest.mark.parametrize(
    "given",
    [
        *(
            1,
            1.0,
            2,
            "1",
            "1.0",
            "100pt",
            "100%",
            "1e5",
            -0.1,
            "-1pt",
            math.nan,
            math.inf,
            "nan",
            "inf",
            "",
            " ",
        ),
        *("pt", "%", "1 point", "٣pt", "1_0pt", "1pt%", True, None, [0.01], "1e400", "0x1", "1" * 400),
    ],
)
def test_what_is_no_tolerance(given):
    with pytest.raises(InvalidValueError) as error:
        parse_tolerance(given)
    assert error.value.parameter == "tolerance"


def test_a_point_is_of_the_metric_and_a_percent_of_the_base():
    assert allowed_drop("1%", 0.5, log=False) == pytest.approx(0.005)
    assert allowed_drop("1%", -2.3, log=True) == pytest.approx(math.log(1.01))
    assert allowed_drop(0.01, 0.5, log=False) == 0.01
    curve = Curve((0, 0.25, 0.5, 1), (0.5, 0.496, 0.492, 0.4))
    assert [curve.within(parse_tolerance(t)) for t in ("1%", "1pt", "20%", 0)] == [0.25, 0.5, 1, 0]
    assert curve.trial(0).within("1%") == 0.25


def test_runs_keep_the_spelling_and_reports_use_it(tmp_path):
    found = read_run(write_run(tmp_path, tolerance="30%"))
    assert found.tolerance == "30%"
    report = Report([found])
    assert report.tolerance == report.to_dict()["tolerance"] == "30%"
    assert {row["removed"] for row in report.sheets["summary"] if row["method"] == "gnorm"} == {0.5}
    assert "30 %" in report.markdown()
    assert read_run(write_run(tmp_path, tolerance=1.0)).tolerance == 1.0  # older runs could
    with pytest.raises(FormatError):
        read_run(write_run(tmp_path, tolerance="much"))


@pytest.mark.parametrize("verb", [espalier.compare, espalier.prune, espalier.evaluate])
def test_verbs_refuse_a_bare_one(verb, tmp_path):
    with pytest.raises(InvalidValueError) as error:
        verb(tmp_path / "none", tmp_path / "none.tsv", tolerance=1)
    assert error.value.parameter == "tolerance"


# ------------------------------------------------------------------------------------------ chance


def test_a_result_at_chance_is_warned_about(place, tmp_path, caplog):
    given = (place / "model", place / "data.tsv")
    found = espalier.prune(*given, "magnitude", remove=1.0, folder=tmp_path / "s", **QUICK)
    assert set(found["majority"]) == {"validation", "test"}
    low = [x for x in ("validation", "test") if found["after"][x]["accuracy"] <= found["majority"][x]]
    assert found["at_chance"] == low != []
    assert any("most frequent class" in r.message and "removed" in r.message for r in caplog.records)
    caplog.clear()
    found = espalier.evaluate(*given, **{k: v for k, v in QUICK.items() if k != "calibration"})
    assert bool(found["at_chance"]) == any("most frequent class" in r.message for r in caplog.records)


def test_a_choice_at_chance_is_noted_in_reports(tmp_path):
    """Half of the labels are of each class; gnorm predicts one class only when all is removed."""
    found = read_run(write_run(tmp_path, tolerance=0.6))
    assert any("most frequent class" in line for line in Report([found]).notes())
    found = read_run(write_run(tmp_path, tolerance=0.02))
    assert not any("most frequent class" in line for line in Report([found]).notes())


# ------------------------------------------------------------------------------------------ sizes


@pytest.mark.parametrize(("dtype", "size"), [("float16", 2), ("bfloat16", 2), ("float32", 4), (None, 4)])
def test_reports_count_bytes_in_the_stored_dtype(tmp_path, dtype, size):
    rows = [*ROWS, row("gnorm", 1, "0110", phase="recovered")]
    found = read_run(write_run(tmp_path, rows, head={**HEAD, "dtype": dtype}))
    assert found.cost(("gnorm", "one-shot"), 0.25).megabytes == size * 950 / 2**20
    assert found.cost(("base", "one-shot"), 0.0).dense_megabytes == size * 1000 / 2**20
    assert found.cost(("gnorm", "recovered"), 0.25).megabytes == 4 * 950 / 2**20  # saved in float32


@pytest.mark.parametrize("target", ["heads", "weights"])
def test_compare_and_prune_agree_on_the_bytes_of_a_model_in_16_bits(place, tmp_path, target):
    from espalier.testing.tiny import tiny

    torch.manual_seed(0)
    model = tiny("bert", "AutoModelForSequenceClassification", num_labels=2).to(torch.float16)
    model.save_pretrained(tmp_path / "half")
    toys.tokenizer().save_pretrained(tmp_path / "half")
    given = (tmp_path / "half", place / "data.tsv", "magnitude")
    espalier.compare(*given, target=target, remove=[0.5], folder=tmp_path / "run", figures=False, **QUICK)
    run = read_run(tmp_path / "run")
    pruned = espalier.prune(*given, target=target, remove=0.5, **QUICK)  # nothing is saved: no header
    cost = run.cost(("magnitude", "one-shot"), run.curve("magnitude").removed[-1])
    if target == "heads":
        assert pruned["after"]["bytes"] / 2**20 == cost.megabytes
    assert run.cost(("base", "one-shot"), 0.0).dense_megabytes == pytest.approx(
        sum(t.nbytes for t in model.state_dict().values()) / 2**20, rel=1e-3
    )


# ------------------------------------------------------------------------------------------ one folder twice


def test_a_folder_is_pruned_by_tolerance_and_then_to_a_fraction_and_back(place, tmp_path):
    given = (place / "model", place / "data.tsv", "magnitude:scope=layer")
    first = espalier.prune(*given, tolerance=0.3, folder=tmp_path / "s", **QUICK)
    second = espalier.prune(*given, remove=0.5, folder=tmp_path / "s", **QUICK)
    assert second["after"]["heads"] == 9
    again = espalier.prune(*given, tolerance=0.3, folder=tmp_path / "s", **QUICK)
    assert again["removed"] == first["removed"]
    measured = [
        r["removed"]
        for r in read_rows(tmp_path / "s-run" / "rows.jsonl")
        if r["method"] == "magnitude:scope=layer"
    ]
    assert measured
    espalier.prune(*given, remove=0.5, folder=tmp_path / "t", **QUICK)
    espalier.prune(*given, tolerance=0.3, folder=tmp_path / "t", **QUICK)


def test_trials_are_still_measured_alike(place, tmp_path):
    given = (place / "model", place / "data.tsv", "random:2")
    how = {"folder": tmp_path / "run", "figures": False, "remove": 0.5, **QUICK}
    espalier.compare(*given, every=3, **how)
    with pytest.raises(ConflictError) as error:
        espalier.compare(*given, every=4, **how)
    assert "every" in error.value.differences


# ------------------------------------------------------------------------------------------ precision, names


def test_recovery_trains_in_the_precision_of_the_session(monkeypatch):
    seen = []
    monkeypatch.setattr("espalier.experiment.recovery.train", lambda *a, **o: seen.append(o["precision"]))
    session = toys.toy_session(precision="bf16")
    Recovery(1, 8).after(session, session.model, 0)
    assert seen == [session.precision] == ["bf16"]


@pytest.mark.parametrize("verb", ["recover", "prune"])
def test_training_verbs_record_the_precision_that_was_asked(verb, place, tmp_path):
    how = {"epochs": 1, "examples": 8, "folder": tmp_path / "out", "precision": "bf16", **QUICK}
    if verb == "prune":
        how |= {"target": "weights", "remove": 0.5}
    getattr(espalier, verb)(place / "model", place / "data.tsv", **how)
    settings = json.loads((tmp_path / "out" / "training.json").read_text())["settings"]
    assert settings["precision"] == "bf16"
    assert "bf16" in loop.PRECISIONS


@pytest.mark.parametrize(("name", "meant"), [("nonexistent-model", None), ("brt", "bert"), ("lama", "llama")])
def test_a_model_that_is_not_there(name, meant):
    with pytest.raises(FolderError) as error:
        config_of(name)
    assert "not found" in str(error.value)
    assert "xclip" not in str(error.value)
    assert meant is None or repr(meant) in str(error.value)
