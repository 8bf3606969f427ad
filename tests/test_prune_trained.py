"""Heads and neurons pruned while the model trains, by gates or by a schedule: facts, folder, command."""

import pytest
import torch
from commands import typed
from toys import folder_with_model, table_of, task, tokenizer

import espalier
from espalier import load, plan_of, sites
from espalier.core.errors import ConflictError, FolderError, InvalidValueError, UnsupportedError
from espalier.experiment.budget_request import BUDGET_OPTIONS
from espalier.experiment.prune_weights import TRAINING, UNITS
from espalier.experiment.verb import Keywords
from espalier.testing.tiny import inputs, outputs, same, tiny

OPTIONS = {"epochs": 1, "batch_size": 8, "lr": 1e-3, "max_length": 16, "calibration": 8}
UNTRAINED = {"untrained": True}  # the toy task has nothing to learn


def prune(kind="bert", method="gates", **options):
    language = kind != "bert"
    model = tiny(kind, "AutoModelForCausalLM" if language else "AutoModelForSequenceClassification")
    data = task("language" if language else "classification")
    given = {
        **OPTIONS,
        **UNTRAINED,
        "remove": 0.5,
        "max_length": 8 if language else 16,
        "tokenizer": tokenizer(),
    }
    return espalier.prune(model, data, method, **{**given, **options})


@pytest.mark.parametrize("target", ["heads", "neurons"])
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_gates_reach_the_fraction(kind, target):
    found = prune(kind, target=target)
    units = {"heads": 18, "neurons": 120}[target]
    assert found["before"][target] == units
    assert found["after"][target] == units // 2
    assert found["removed"] == 0.5
    kept = {s.name: s.units for s in sites(found.model, target)}
    assert {one["site"]: one["kept"] for one in found["layers"]} == kept
    assert all(name.rpartition("/")[0] in repr(found) for name in kept)


@pytest.mark.parametrize("kind", ["all_attention", "transformer_xl"])
def test_our_own_language_models(kind, tmp_path):
    found = prune(kind, remove=1 / 3, folder=tmp_path / "small")
    assert found["after"]["heads"] == 12
    again = load(tmp_path / "small")
    same(outputs(again, inputs(again)), outputs(found.model, inputs(again)), "loaded", exact=True)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_random_model_is_refused(kind):
    with pytest.raises(UnsupportedError):
        prune(kind, untrained=False)


def test_slots_are_pruned_by_a_measured_order():
    model = tiny("all_attention", "AutoModelForCausalLM")
    found = espalier.prune(
        model,
        task("language"),
        target="slots",
        remove=0.5,
        max_length=8,
        calibration=8,
        tokenizer=tokenizer(),
    )
    assert found["units"] == 60
    assert sum(s.units for s in sites(found.model, "slots")) == 30
    assert found["after"]["macs"] < found["before"]["macs"]


def test_any_criterion_prunes_by_a_schedule_too():
    found = prune(method="taylor", schedule="linear")
    assert found["after"]["heads"] == 9


def test_a_penalty_instead_of_a_fraction():
    found = prune(remove=None, penalty=50.0, warmup=0.0, gate_lr=1.0, until=1.0)
    assert found["after"]["heads"] == 0
    assert prune(remove=None, penalty=0.0, gate_lr=1e-3)["after"]["heads"] == 18


def test_a_folder_resumes_and_is_not_mixed(tmp_path):
    first = prune(folder=tmp_path / "small")
    again = prune(folder=tmp_path / "small")
    assert plan_of(again.model).keep == plan_of(first.model).keep
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), first.model.parameters()))
    assert again["layers"] == first["layers"]
    with pytest.raises(ConflictError):
        prune(folder=tmp_path / "small", remove=0.25)


def test_compare_prunes_by_gates(tmp_path):
    model = tiny("bert", "AutoModelForSequenceClassification")
    given = {**OPTIONS, "tokenizer": tokenizer(), "figures": False, "folder": tmp_path / "run"}
    found = espalier.compare(model, task(), ["gates", "magnitude"], remove=[0.5], schedule="linear", **given)
    (results,) = found.results
    assert {("gates", "gradual"), ("magnitude", "gradual")} <= set(results.curves)
    assert ("gates", "one-shot") not in results.curves


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"tolerance": 0.1}, "remove"),
        ({"remove": None}, "remove"),
        ({"penalty": 0.1}, "remove"),
        ({"remove": 1.5}, "remove"),
        ({"ste": True}, "ste"),
        ({"method": "taylor", "penalty": 0.1}, "penalty"),
        ({"method": "taylor", "remove": None}, "remove"),
    ],
)
def test_wrong_options(options, parameter):
    with pytest.raises(InvalidValueError) as error:
        prune(**options)
    assert error.value.parameter == parameter


def test_gates_are_not_learned_without_a_training():
    model = tiny("bert", "AutoModelForSequenceClassification")
    with pytest.raises(InvalidValueError) as error:
        espalier.prune(model, task(), "gates", remove=0.5, tokenizer=tokenizer())
    assert error.value.parameter == "epochs"


def test_the_command(tmp_path):
    folder_with_model(tmp_path / "tuned")
    table_of(tmp_path / "data.tsv")
    words = f"prune {tmp_path}/tuned --task {tmp_path}/data.tsv --method gates --remove 0.5 --epochs 1"
    words += f" --set batch_size=16 --set warmup=0.2 --set untrained=true -o {tmp_path}/small --max-length 16"
    shown = typed(*words.split())
    assert "layer.0" in shown
    assert sum(s.units for s in sites(load(tmp_path / "small"), "heads")) == 9


def test_weights_have_no_options_of_gates():
    for name, value in {"warmup": 0.5, "penalty": 0.1, "untrained": True}.items():
        with pytest.raises(InvalidValueError) as error:
            espalier.prune("nowhere", "nothing", target="weights", remove=0.5, epochs=1, **{name: value})
        assert error.value.parameter == name


def test_slots_are_not_pruned_while_training():
    with pytest.raises(InvalidValueError) as error:
        espalier.prune("nowhere", "nothing", "taylor", target="slots", remove=0.5, epochs=1)
    assert error.value.parameter == "epochs"


def test_a_training_does_not_replace_the_model_it_reads(tmp_path):
    folder_with_model(tmp_path / "tuned")
    before = sorted(path.name for path in (tmp_path / "tuned").iterdir())
    for target in ("heads", "weights"):
        with pytest.raises(FolderError):
            espalier.prune(
                tmp_path / "tuned",
                "nothing",
                "magnitude",
                target=target,
                remove=0.5,
                epochs=1,
                folder=tmp_path / "tuned",
                overwrite=True,
            )
    assert sorted(path.name for path in (tmp_path / "tuned").iterdir()) == before


def test_every_option_of_a_pruning_has_a_type():
    assert {*TRAINING, *UNITS, *BUDGET_OPTIONS} <= set(Keywords.model_fields)
