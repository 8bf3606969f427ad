"""What prune promises of a budget: any model, the original it is judged by, dtype and size, the last line."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toys

import espalier
from espalier import load, plan_of
from espalier.cli.app import QUIET
from espalier.cli.show import show
from espalier.core.errors import (
    ConflictError,
    DataError,
    FolderError,
    InvalidValueError,
    UnknownNameError,
    UnsupportedError,
)
from espalier.evaluation.cost import cost
from espalier.experiment.budget_request import limited_target
from espalier.experiment.latency_table import Shape
from espalier.reports.budgets import verdict_lines
from espalier.reports.outcome import pruned_tables
from espalier.tasks.task import SPLITS, Examples
from espalier.testing.tiny import tiny

QUICK = dict(calibration=16, validation=40, test=40, max_length=32)


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.setattr("espalier.experiment.prune_budget.SECONDS", 0)  # as few rounds as possible
    model = toys.folder_with_model(tmp_path / "model")
    return str(model), str(toys.table_of(tmp_path / "data.tsv", n=240))


def origin_of(folder):
    return json.loads((folder / "plan.json").read_text())["origin"]


def varied(**config):
    """A model that does not predict one class only."""
    model = tiny("bert", "AutoModelForSequenceClassification", **config)
    draw = torch.Generator().manual_seed(0)
    for name, p in model.named_parameters():
        if p.dim() > 1:
            p.data = 0.5 * torch.randn(p.shape, generator=draw)
        elif name == "classifier.bias":
            p.data.zero_()
    return model


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_tokens_that_are_timed_end_where_a_classifier_reads(kind):
    model = tiny(kind, "AutoModelForSequenceClassification")
    end = model.config.eos_token_id
    ids = Shape(3, 64).batch(model)["input_ids"]
    assert (ids == end).sum(1).tolist() == [1, 1, 1]
    assert (ids[:, -1] == end).all()
    assert model(**Shape(3, 64).batch(model)).logits.shape[0] == 3
    plain = tiny("bert", "AutoModelForSequenceClassification", eos_token_id=2)
    assert (Shape(3, 64).batch(plain)["input_ids"] == 2).any()


def test_a_model_is_saved_before_it_is_timed(given, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no clock")

    monkeypatch.setattr("espalier.experiment.prune_budget.time_rounds", fail)
    with pytest.raises(RuntimeError):
        espalier.prune(*given, macs=0.5, repair="none", folder=tmp_path / "small", **QUICK)
    assert plan_of(load(tmp_path / "small")).keep


@pytest.mark.parametrize(
    ("method", "target", "want"),
    [
        (None, None, "heads,neurons"),
        ("fisher", None, "heads,neurons"),
        ("gnorm", None, "heads"),
        (None, "neurons", "neurons"),
        ("taylor:static", "heads", "heads"),
        (None, "layers", "layers"),
        ("kl", "attention,ffn", "attention,ffn"),
        ("gnorm:scope=layer", None, None),
        ("random:3", "heads", None),
        (None, "weights", None),
        (None, "slots", None),
        ("nonsense", None, None),
    ],
)
def test_what_a_tolerance_is_met_by(method, target, want):
    assert limited_target(method, target) == want


@pytest.mark.parametrize("target", ["heads", "neurons", "layers"])
def test_a_tolerance_of_one_target_is_judged_by_the_original(given, tmp_path, target):
    first = espalier.prune(*given, macs=0.7, folder=tmp_path / "a", **QUICK)
    second = espalier.prune(
        tmp_path / "a", given[1], target=target, tolerance=0.99, repair="none", folder=tmp_path / "b", **QUICK
    )
    assert second["budget"]["kind"] == "tolerance"
    assert second["target"] == target
    assert second["original"] == first["original"]
    assert second["original"]["model"] == "model"
    assert "against model, the original" in second.verdicts[-1]
    assert "original" not in first.verdicts[-1]
    if target == "layers":
        assert second["after"]["macs"] > 0


def test_the_original_is_followed_through_training_and_plain_pruning(given, tmp_path):
    first = espalier.prune(*given, macs=0.7, folder=tmp_path / "a", **QUICK)
    espalier.recover(
        tmp_path / "a", given[1], tmp_path / "b", epochs=1, examples=16, **{**QUICK, "calibration": 1}
    )
    espalier.prune(tmp_path / "b", given[1], "magnitude", remove=0.5, folder=tmp_path / "c", **QUICK)
    found = [origin_of(tmp_path / name)["original"] for name in "abc"]
    assert found == [first["original"]] * 3
    last = espalier.prune(tmp_path / "c", given[1], macs=0.8, repair="none", **QUICK)
    assert last["original"] == first["original"]


@pytest.mark.parametrize("recipe", ["kwon", "kcm"])
def test_recipes_take_a_tolerance(given, recipe):
    found = espalier.prune(*given, tolerance=0.99, recipe=recipe, **QUICK)
    assert found["budget"]["kind"] == "tolerance"
    assert found["after"]["macs"] < found["before"]["macs"]


def test_a_search_by_sublayers_takes_no_tolerance(given):
    with pytest.raises(InvalidValueError) as error:
        espalier.prune(*given, tolerance=0.99, recipe="kprune", **QUICK)
    assert error.value.parameter == "search"


def test_the_last_measurement_is_not_one_that_was_chosen(given, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = iter([1.6, 1.5, 1.2])  # two cuts, and the second once more

    def times(models, batch, rounds=10, warmup=2):
        pair = torch.tensor([1.0, 1.0], dtype=torch.float64)
        if warmup == 0:
            pair[1] = 1 / next(measured)
        return pair[:, None].expand(-1, rounds)

    def by_macs(models, batch, rounds=10):
        seconds = [0.1 + 0.9 * cost(model).macs / cost(models[0]).macs for model in models]
        return torch.tensor(seconds, dtype=torch.float64)[:, None].expand(-1, rounds)

    monkeypatch.setattr("espalier.experiment.latency_table.time_rounds", by_macs)
    monkeypatch.setattr("espalier.experiment.prune_budget.time_rounds", times)
    found = espalier.prune(*given, speedup=1.5, repair="none", **QUICK)
    assert found["budget"]["achieved"] == pytest.approx(1.2)
    assert found["budget"]["met"] is False
    assert found["speedup"] == pytest.approx(1.2)


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16"])
def test_what_is_measured_is_what_is_saved(given, tmp_path, dtype):
    how = {} if dtype is None else {"dtype": dtype}
    small = espalier.prune(*given, macs=0.5, folder=tmp_path / "small", **how, **QUICK)
    saved = espalier.evaluate(tmp_path / "small", given[1], **{**QUICK, "calibration": 1})
    assert small["after"]["test"]["loss"] == saved["test"]["loss"]
    size = {None: 4, "bfloat16": 2, "float16": 2}[dtype]
    assert {p.element_size() for p in load(tmp_path / "small").parameters()} == {size}


def test_frequencies_are_not_rounded_when_a_model_is_saved():
    session = replace(toys.toy_session("llama"), stored=torch.bfloat16)
    before = {name: value.clone() for name, value in session.model.named_buffers()}
    assert any("inv_freq" in name for name in before)
    with session.in_stored_dtype(session.model):
        assert session.model.dtype == torch.bfloat16
    assert session.model.dtype == torch.float32
    assert all(torch.equal(value, before[name]) for name, value in session.model.named_buffers())
    assert session.round_to_stored(session.model) is False  # they are bfloat16 already


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"macs": 0.5, "dtype": "int8"}, UnknownNameError),
        ({"remove": 0.5, "epochs": 1, "dtype": "float16"}, InvalidValueError),
    ],
)
def test_dtypes_that_make_no_sense(given, options, error):
    with pytest.raises(error) as found:
        espalier.prune(*given, **options, **QUICK)
    assert found.value.parameter == "dtype"


def test_the_last_line_is_the_verdict(given):
    small = espalier.prune(*given, macs=0.5, **QUICK)
    sizes = ",".join(f"{share * small['before']['bytes']:.0f}B" for share in (0.95, 0.9))
    family = espalier.prune(*given, size=sizes, **QUICK)
    loose = espalier.prune(*given, tolerance=0.99, repair="none", **QUICK)
    assert small.verdicts[-1].startswith("macs 0.5: 0.")
    assert ", met; test accuracy " in small.verdicts[-1]
    assert [line.split(" (")[0] for line in family.verdicts] == [
        f"size {one['budget']['asked']}: {one['budget']['achieved'] / 1e6:.4g}MB" for one in family["family"]
    ]
    assert "lost on validation" in loose.verdicts[-1]


def test_texts_alone_are_enough(given, tmp_path, caplog):
    file = tmp_path / "texts.tsv"
    lines = [line.split("\t")[0] for line in Path(given[1]).read_text().splitlines()]
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError):
        espalier.prune(given[0], file, macs=0.7, **QUICK)
    with caplog.at_level(logging.WARNING, "espalier"):
        small = espalier.prune(
            given[0], file, macs=0.7, kind="unlabelled", folder=tmp_path / "small", **QUICK
        )
    assert small["method"] == "obs"
    assert any("agreement" in record.getMessage() for record in caplog.records)
    assert small["before"]["test"]["accuracy"] == 1
    with pytest.raises(DataError):
        espalier.evaluate(tmp_path / "small", file, kind="unlabelled", **{**QUICK, "calibration": 1})


def test_agreement_is_measured_on_the_same_examples(given):
    task, model = toys.task(), varied()
    plain = replace(task, **{name: Examples(getattr(task, name).texts) for name in SPLITS})
    how = dict(macs=0.5, tokenizer=toys.tokenizer(), calibration=16, max_length=32, method="kl")
    found = espalier.prune(model, plain, **how)
    session = toys.toy_session()
    predicted = [session.predict(one, "test").values for one in (model, found.model)]
    assert len(set(predicted[0])) == 2
    assert 0 < (predicted[0] == predicted[1]).mean() < 1
    assert found["after"]["test"]["accuracy"] == pytest.approx((predicted[0] == predicted[1]).mean())


def test_without_labels_and_in_bf16_a_model_agrees_with_itself():
    task = toys.task()
    plain = replace(task, **{name: Examples(getattr(task, name).texts) for name in SPLITS})
    how = dict(tokenizer=toys.tokenizer(), calibration=16, max_length=32, precision="bf16")
    found = espalier.prune(varied(), plain, macs=0.5, repair="none", **how)
    assert found["before"]["test"]["accuracy"] == found["before"]["validation"]["accuracy"] == 1
    assert found["agreement"] is True


@pytest.mark.parametrize("missing", ["validation", "test", "classes"])
def test_what_cannot_be_measured_is_said(missing):
    task, model = toys.task(), varied(num_labels=1) if missing == "classes" else varied()
    names = SPLITS if missing == "classes" else (missing,)
    plain = replace(task, **{name: Examples(getattr(task, name).texts) for name in names})
    how = dict(tokenizer=toys.tokenizer(), calibration=16, max_length=32)
    with pytest.raises(DataError):
        espalier.prune(model, plain, macs=0.5, **how)
    if missing == "test":
        assert espalier.score(model, plain, "kl", **how).scores


def test_the_card_does_not_call_agreement_accuracy(given, tmp_path):
    task = toys.task()
    plain = replace(task, **{name: Examples(getattr(task, name).texts) for name in SPLITS})
    how = dict(tokenizer=toys.tokenizer(), calibration=16, max_length=32, folder=tmp_path / "small")
    small = espalier.prune(varied(), plain, macs=0.5, **how)
    card = (tmp_path / "small" / "README.md").read_text()
    assert "agreement with" in card
    assert "model-index" not in card
    assert "agreement with" in small.verdicts[-1]
    assert not any("recover" in note for note in small.notes)


def test_other_dtypes_begin_anew(given, tmp_path, monkeypatch):
    monkeypatch.setattr("espalier.experiment.budget_record.BudgetRecord.close", lambda _: None)
    how = dict(macs="0.7,0.5", repair="none", folder=tmp_path / "family", **QUICK)
    espalier.prune(*given, **how)
    espalier.prune(*given, dtype="float16", **how)
    assert load(tmp_path / "family" / "macs-0.5").dtype == torch.float16


def test_weights_too_large_for_a_dtype(given):
    model = varied()
    model.bert.embeddings.word_embeddings.weight.data[5, 0] = 1e6
    how = dict(macs=0.9, repair="none", tokenizer=toys.tokenizer(), calibration=16, max_length=32)
    with pytest.raises(InvalidValueError) as error:
        espalier.prune(model, toys.task(), dtype="float16", **how)
    assert error.value.parameter == "dtype"


def test_the_size_before_is_in_the_dtype_before():
    how = dict(macs=0.5, repair="none", tokenizer=toys.tokenizer(), calibration=16, max_length=32)
    plain = espalier.prune(varied(), toys.task(), **how)
    small = espalier.prune(varied(), toys.task(), dtype="float16", **how)
    assert small["before"]["bytes"] == plain["before"]["bytes"]
    assert small["after"]["bytes"] < 0.6 * plain["after"]["bytes"]


def test_a_type_without_units_says_why():
    session = toys.toy_session("albert", target="layers")
    with pytest.raises(UnsupportedError) as error:
        espalier.prune(session.model, session.task, macs=0.5, target="layers", tokenizer=session.tokenizer)
    assert session.sites[0].uncuttable in str(error.value)


# ------------------------------------------------------------------------------------- what is said, and kept


def test_a_size_is_that_of_the_file(given, tmp_path):
    whole = Path(given[0], "model.safetensors").stat().st_size
    small = espalier.prune(*given, size=f"{0.9 * whole / 1e3:.3f}kB", folder=tmp_path / "s", **QUICK)
    file = (tmp_path / "s" / "model.safetensors").stat().st_size
    assert small["budget"]["met"]
    assert file <= small["budget"]["achieved"] <= 0.9 * whole
    assert small["budget"]["achieved"] - file < 0.05 * file  # not far below either


def test_the_card_and_a_quiet_command_say_whether_it_was_met(given, tmp_path, capsys):
    small = espalier.prune(*given, macs=0.6, folder=tmp_path / "s", **QUICK)
    assert small.verdicts
    assert small.verdicts[0].split(";")[0] in (tmp_path / "s" / "README.md").read_text()
    token = QUIET.set(True)
    try:
        show(small)
    finally:
        QUIET.reset(token)
    said = capsys.readouterr()
    assert said.out.rstrip().endswith(small.verdicts[0])
    assert not said.err


def test_a_budget_that_removed_nothing_says_so(given):
    facts = espalier.prune(*given, macs=0.7, **QUICK).facts
    assert "nothing could be removed" not in verdict_lines(facts)[0]
    facts["after"]["parameters"] = facts["before"]["parameters"]
    assert verdict_lines(facts)[0].endswith("nothing could be removed")


def test_recovery_keeps_the_dtype_and_measures_what_it_saves(given, tmp_path):
    espalier.prune(*given, macs=0.7, dtype="float16", folder=tmp_path / "s", **QUICK)
    data = dict(validation=40, test=40, max_length=32)
    how = {"epochs": 1, "examples": 16, "batch_size": 8, "lr": 1e-3, **data}
    size = (tmp_path / "s" / "model.safetensors").stat().st_size
    found = espalier.recover(tmp_path / "s", given[1], tmp_path / "r", **how)
    again = espalier.recover(tmp_path / "s", given[1], tmp_path / "r", **how)
    assert again.facts == found.facts
    assert (tmp_path / "r" / "model.safetensors").stat().st_size == pytest.approx(size, rel=0.01)
    assert espalier.load(tmp_path / "r").dtype == torch.float16
    measured = espalier.evaluate(tmp_path / "r", given[1], **data)
    assert measured["test"] == found["after"]["test"]
    assert measured["bytes"] == found["after"]["bytes"]
    espalier.recover(tmp_path / "s", given[1], tmp_path / "w", dtype="float32", **how)
    assert espalier.load(tmp_path / "w").dtype == torch.float32
    with pytest.raises(ConflictError):
        espalier.recover(tmp_path / "s", given[1], tmp_path / "r", dtype="float32", **how)
    with pytest.raises(UnknownNameError):
        espalier.recover(tmp_path / "s", given[1], tmp_path / "x", dtype="int8", **how)


def test_a_family_does_not_go_into_a_model(given, tmp_path):
    espalier.prune(*given, macs=0.7, folder=tmp_path / "s", **QUICK)
    with pytest.raises(FolderError):
        espalier.prune(*given, macs="0.7,0.5", folder=tmp_path / "s", **QUICK)
    family = espalier.prune(*given, macs="0.7,0.6", target="layers", folder=tmp_path / "f", **QUICK)
    rows = pruned_tables(family.facts)[0].rows
    for one, row in zip(family["family"], rows[1:]):
        (site,) = one["layers"]
        assert len(site["removed"]) == site["units"] - site["kept"] > 0
        assert row["speed"] == f"{one['speedup']:.2f}×"
        assert row["achieved"].endswith(", met" if one["budget"]["met"] else ", NOT MET")
    with pytest.raises(FolderError, match=r"macs-0\.6"):
        espalier.prune(*given, macs=0.7, folder=tmp_path / "f", **QUICK)


def test_layers_are_named_as_they_were_numbered_before_any_pruning(given, tmp_path):
    first = espalier.prune(*given, target="layers", remove=0.34, folder=tmp_path / "a", **QUICK)
    (gone,) = first["layers"][0]["removed"]
    second = espalier.prune(
        tmp_path / "a", given[1], target="layers", remove=0.5, folder=tmp_path / "b", **QUICK
    )
    (also,) = second["layers"][0]["removed"]
    assert also != gone
    assert {gone, also} < {0, 1, 2}
    assert f"without {also}" in (tmp_path / "b" / "README.md").read_text()


@pytest.mark.parametrize(("spread", "said"), [(1.2, False), (1.4, True)])
def test_times_that_vary_are_pointed_out(given, spread, said):
    facts = espalier.prune(*given, macs=0.7, **QUICK).facts
    facts["budget"] = facts["budget"] | {"kind": "speedup", "asked": "1.5", "achieved": 1.5}
    facts["latency"]["ratio"] = [1.0, spread]
    assert ("times vary" in verdict_lines(facts)[0]) == said


def test_weights_of_a_distillation_that_do_not_exist(given):
    how = dict(way="distill", teacher=given[0], distillation={"heat": 2.0})
    with pytest.raises(UnknownNameError) as error:
        espalier.recover(*given, **how)
    assert error.value.parameter == "distillation"
