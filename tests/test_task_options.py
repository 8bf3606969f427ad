"""What a caller may say of a task: its metric and its columns; and what is said of a task that is odd."""

import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import toys

import espalier
from espalier.core.call import CALL, spell
from espalier.core.errors import ConflictError, DataError, UnknownNameError
from espalier.experiment.classes import in_model_numbering
from espalier.testing.tiny import tiny

QUICK = dict(calibration=16, validation=40, test=40, max_length=32)


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.setattr("espalier.experiment.prune_budget.SECONDS", 0)  # as few rounds as possible
    model = toys.folder_with_model(tmp_path / "model")
    return str(model), str(toys.table_of(tmp_path / "data.tsv", n=240))


@pytest.fixture
def texts_to_train_by(given, tmp_path):
    """A task whose training examples have no labels, and those training texts."""
    header, *rows = Path(given[1]).read_text().splitlines()
    lines = [header, *(row.split("\t")[0] + "\t" for row in rows[:120])]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    (tmp_path / "test.tsv").write_text("\n".join([header, *rows[120:]]) + "\n")
    texts = {row.split("\t")[0] for row in rows[:120]}
    return f"train={tmp_path / 'train.tsv'},test={tmp_path / 'test.tsv'}", texts


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


def test_a_budget_is_judged_by_the_metric_that_is_named(given, tmp_path):
    small = espalier.prune(*given, macs=0.6, metric="matthews", folder=tmp_path / "small", **QUICK)
    assert small["metric"] == "matthews"
    assert "matthews" in small.verdicts[-1]
    assert "metric='matthews'" in " ".join(small.notes)  # the next steps go by it too
    found = espalier.evaluate(tmp_path / "small", given[1], metric="f1", **{**QUICK, "calibration": 1})
    assert "95 % of f1" in str(found)


@pytest.mark.parametrize("verb", ["prune", "evaluate", "train", "compare"])
def test_a_metric_of_another_kind_of_task_is_refused(given, verb):
    how = dict(macs=0.5) if verb == "prune" else {}
    with pytest.raises(UnknownNameError) as error:
        getattr(espalier, verb)(*given, metric="perplexity", **how)
    assert error.value.name == "perplexity"
    assert error.value.known == ["accuracy", "f1", "matthews"]


@pytest.mark.parametrize("method", [None, "kl", "energy"])
def test_texts_without_labels_are_enough_to_score_by(given, texts_to_train_by, method, monkeypatch, tmp_path):
    import espalier.experiment.pruner as pruner

    task, texts = texts_to_train_by
    seen = []
    monkeypatch.setattr(
        pruner,
        "prune_budgets",
        lambda session, *a, real=pruner.prune_budgets, **k: seen.append(session) or real(session, *a, **k),
    )
    small = espalier.prune(
        given[0], task, method, macs=0.6, repair="none", folder=tmp_path / "small", **QUICK
    )
    assert small["method"] == (method or "kl")
    assert "recover" not in " ".join(small.notes)  # there is nothing to train on
    assert set(seen[0].calibrated_on.texts) <= texts
    assert small["before"]["test"]["n"] == 40  # what is measured has labels
    assert "agreement" not in small.facts


@pytest.mark.parametrize("method", ["fisher", "obs:labels=true"])
def test_a_score_by_labels_takes_examples_that_have_some(given, texts_to_train_by, method):
    small = espalier.prune(given[0], texts_to_train_by[0], method, macs=0.6, repair="none", **QUICK)
    assert small["method"] == method
    made = toys.task()
    with pytest.raises(DataError):  # nothing else is left to score by
        espalier.prune(given[0], replace(made, train=toys.Examples(made.train.texts)), "fisher", macs=0.6)


def test_fewer_classes_than_the_model_has_are_pointed_out(caplog):
    model = tiny("bert", "AutoModelForSequenceClassification", num_labels=3)
    task = toys.task()
    with caplog.at_level(logging.WARNING, "espalier"):
        in_model_numbering(task, model)
    assert any("predicts 3" in message for message in messages(caplog))
    caplog.clear()
    model.config.label2id = {"a": 0, "b": 1, "c": 2}
    with caplog.at_level(logging.WARNING, "espalier"):  # names say which is which
        in_model_numbering(replace(task, classes=("c", "a")), model)
    assert not caplog.records


def test_a_model_at_chance_is_warned_about_once(given, caplog):
    with caplog.at_level(logging.WARNING, "espalier"):
        made = espalier.prune(*given, macs="0.7,0.5", repair="none", **QUICK)
    warned = [message for message in messages(caplog) if "most frequent class" in message]
    assert len(warned) == 1
    assert "unpruned" in warned[0]
    assert all(one["at_chance"] for one in made["family"])


def test_a_resumed_run_says_what_it_has(given, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("espalier.experiment.budget_record.BudgetRecord.close", lambda _: None)
    how = dict(macs=0.5, repair="none", folder=tmp_path / "small", **QUICK)
    for _ in range(2):
        with caplog.at_level(logging.INFO, "espalier"):
            espalier.prune(*given, **how)
    resumed = [message for message in messages(caplog) if "resuming" in message]
    assert len(resumed) == 1
    assert "1 finished" in resumed[0]
    assert " stage" in resumed[0]


def test_calls_are_spelled_with_columns_as_they_are_typed(monkeypatch):
    named = dict(task="data.tsv", text="review", label="my stars", kind="regression", metric="pearson")
    token = CALL.set("espalier prune")
    monkeypatch.setattr(sys, "argv", ["espalier", "prune"])
    try:
        assert spell("recover", "small", **named) == (
            "espalier recover small --task data.tsv --set kind=regression --set metric=pearson "
            "--columns 'text=review,label=my stars'"
        )
    finally:
        CALL.reset(token)
    assert "text='review'" in spell("recover", "small", **named)


def test_a_run_that_was_measured_by_another_metric_chooses_nothing(given, tmp_path):
    espalier.compare(
        given[0], given[1], methods=["magnitude"], target="heads", folder=tmp_path / "run", **QUICK
    )
    how = dict(run=tmp_path / "run", tolerance=0.5, target="heads", **QUICK)
    with pytest.raises(ConflictError):
        espalier.prune(*given, "magnitude", metric="f1", **how)


def test_an_original_that_was_measured_by_another_metric_is_named_as_such(given, tmp_path, caplog):
    espalier.prune(*given, macs=0.8, repair="none", folder=tmp_path / "small", **QUICK)
    again = dict(macs=0.8, repair="none", metric="f1", **QUICK)
    small = espalier.prune(tmp_path / "small", given[1], **again)
    assert small["original"]["metric"] == "f1"
    assert any("by accuracy" in text for text in messages(caplog))


def test_examples_of_one_class_are_pointed_out(given, tmp_path, caplog):
    header, *rows = Path(given[1]).read_text().splitlines()
    (tmp_path / "train.tsv").write_text(
        "\n".join([header, *(row for row in rows[:120] if row.endswith("1"))]) + "\n"
    )
    (tmp_path / "test.tsv").write_text("\n".join([header, *rows[120:]]) + "\n")
    task = f"train={tmp_path / 'train.tsv'},test={tmp_path / 'test.tsv'}"
    espalier.prune(given[0], task, macs=0.8, repair="none", **QUICK)
    assert any("one class" in text for text in messages(caplog))


def test_the_only_split_that_can_be_used_is_named(texts_to_train_by, given, caplog):
    with caplog.at_level("INFO", "espalier"):
        espalier.prune(given[0], texts_to_train_by[0], "fisher", macs=0.8, repair="none", **QUICK)
    assert any("(test, 120)" in text for text in messages(caplog))
