"""The verbs as functions: compare, prune, recover, evaluate, score, measure on a tiny folder."""

import json
import shutil
from copy import deepcopy

import datasets
import pytest
import torch
import toys
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

import espalier
import espalier.api
from espalier import compensate, criteria, load, plan_of, remove_lowest, sites, zero
from espalier.core.errors import (
    ConflictError,
    DataError,
    EspalierError,
    FolderError,
    FormatError,
    InvalidValueError,
    UnknownNameError,
    UnsupportedError,
)
from espalier.io.files import read_json
from espalier.io.rows import read_rows
from espalier.reports.outcome import Outcome
from espalier.reports.tables import Table
from espalier.testing.tiny import tiny
from espalier.training.held_mask import mask_of_zeros

QUICK = {"calibration": 16, "validation": 40, "test": 40, "max_length": 32}
EVALUATION = {"validation": 40, "test": 40, "max_length": 32}
TRAINING = {"epochs": 1, "examples": 48, "batch_size": 8, "lr": 1e-3}
METHODS = "gnorm,gnorm:static,entropy,entropy:reverse,gnorm:reverse,taylor,random:3:every=6"


@pytest.fixture(scope="module")
def given(place):
    """The model and the task."""
    return place / "model", place / "data.tsv"


@pytest.fixture(scope="module")
def run(place, given):
    return espalier.compare(*given, METHODS, folder=place / "run", tolerance=0.05, **QUICK)


@pytest.fixture(scope="module")
def half(place, tmp_path_factory):
    """The same model, stored in 16 bits."""
    folder = tmp_path_factory.mktemp("half") / "model"
    AutoModelForSequenceClassification.from_pretrained(place / "model").half().save_pretrained(folder)
    toys.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def live(place):
    return AutoModelForSequenceClassification.from_pretrained(place / "model"), toys.tokenizer()


def origin_of(folder):
    return read_json(folder / "plan.json")["origin"]


def zeros(model, also=()):
    return mask_of_zeros(sites(model, "weights", also=also))


def weights_of(folder):
    return load(folder).state_dict()


def wrong(parameter, function, *args, **options):
    with pytest.raises(InvalidValueError) as error:
        function(*args, **options)
    assert error.value.parameter == parameter, error.value
    return error.value


# ------------------------------------------------------------------------------------------ compare, report


def test_compare_writes_rows_tables_and_figures(run):
    folder = run.folder
    for name in ("run.json", "rows.jsonl", "scores.jsonl", "pooling.json", "tables/summary.md"):
        assert (folder / name).is_file(), name
    figures = {file.name for file in (folder / "figures").iterdir()}
    for stem in ("curves", "boxes", "masks"):
        assert {f"{stem}.png", f"{stem}.pdf"} <= figures
    for stem in ("heat", "order", "pooling"):
        assert any(name.startswith(stem) for name in figures)
    assert [r.methods for r in run.results] == [METHODS.split(",")]
    assert json.loads(json.dumps(run.to_dict()))["tolerance"] == 0.05
    assert "gnorm:static" in repr(run)
    assert "<table" in run._repr_html_()


def test_report_needs_no_model(run, tmp_path):
    files = run.report(tmp_path / "one", figures=False)
    again = espalier.report(run.folder, tmp_path / "two", published=True, figures=False)
    assert {f.name for f in files} <= {file.rpartition("/")[2] for file in again["files"]}
    raw = (tmp_path / "two/published/pruned_heads_accuracy(model)basedonGreedyGnorm.csv").read_bytes()
    assert raw.startswith(b"Pruned_Heads,Accuracy\r\n0,")
    assert raw.count(b"\r\n") == 20
    assert (tmp_path / "two/published/pruned_heads_accuracy(model)basedonAEinverse.csv").is_file()


def test_an_outcome_without_a_folder_leaves_no_files(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = espalier.compare(*given, "magnitude", remove=0.3, **QUICK)
    assert found.folder is None
    assert found.results[0].curve("magnitude").removed[-1] == pytest.approx(5 / 18)
    assert not list(tmp_path.iterdir())


def test_heads_with_training_and_a_schedule(given, tmp_path):
    options = {"folder": tmp_path / "run", "remove": [0.25, 0.5], "figures": False, **QUICK, **TRAINING}
    found = espalier.compare(*given, "gnorm:static", schedule="cubic", **options)
    (results,) = found.results
    assert results.phases == ["one-shot", "recovered", "gradual"]
    for phase in results.phases:
        assert results.curve("gnorm:static", phase).removed == (0, 4 / 18, 9 / 18)
    wrong("epochs", espalier.compare, *given, "gnorm", schedule="cubic")


def test_weights_in_python(given, tmp_path):
    options = {"target": "weights", "remove": "0.5,0.9", **QUICK, **TRAINING}
    found = espalier.compare(*given, "magnitude,wanda", folder=tmp_path / "run", **options)
    phases = {(row["method"], row["phase"]) for row in found["by_level"]}
    assert phases >= {(m, p) for m in ("magnitude", "wanda") for p in ("one-shot", "recovered")}
    assert all((tmp_path / "run" / "tables" / name).is_file() for name in ("rows.csv", "report.xlsx"))
    assert any(file.name.startswith("curves") for file in (tmp_path / "run/figures").iterdir())


RECIPE = """
about = "a toy"
model = "{model}"
dataset = "{data}"
text = "sentence"
label = "label"
labels = {{ 0 = 0, 2 = 1 }}
max_length = 32
[faithful]
calibration_split = "validation"
calibration = 20
validation_split = "validation"
validation = 30
test_split = "validation"
test = 30
first = true
score_dropped = true
own_calibration = {{ entropy = 40 }}
batch_size = 4
methods = ["gnorm:pooling=batch:objective=logits", "entropy:form=C", "random:2:every=6"]
[honest]
calibration_split = "validation"
calibration = 16
validation_split = "validation"
validation = 20
test_split = "validation"
test = 20
methods = ["gnorm", "random:2:every=6"]
"""


def test_the_recipe_of_a_user(place, tmp_path):
    (tmp_path / "data").mkdir()
    toys.table_of(tmp_path / "data" / "validation.tsv", n=90, seed=9, classes=3)
    file = tmp_path / "mine.toml"
    file.write_text(RECIPE.format(model=place / "model", data=tmp_path / "data"))
    for name, recipe in (("faithful", f"{file}:faithful"), ("honest", str(file))):
        espalier.compare(recipe=recipe, folder=tmp_path / name, figures=False)
    faithful, honest = (read_json(tmp_path / name / "run.json") for name in ("faithful", "honest"))
    sizes = [faithful["splits"][split]["n"] for split in ("calibration", "validation", "test")]
    assert sizes == [20, 30, 30]
    assert any("share texts" in note for note in faithful["notes"])
    assert not any("share texts" in note for note in honest["notes"])
    assert set(faithful["splits"]["validation"]["labels"]) <= {"0", "1"}


def test_a_model_that_always_predicts_the_same_class_is_reported(given, tmp_path, caplog):
    shutil.copytree(given[0], tmp_path / "flat")
    weights = load_file(tmp_path / "flat" / "model.safetensors")
    weights["classifier.weight"].zero_()
    weights["classifier.bias"][:] = torch.tensor([0.0, 1.0])
    save_file(weights, tmp_path / "flat" / "model.safetensors", {"format": "pt"})
    found = espalier.compare(tmp_path / "flat", given[1], "magnitude:every=6", **QUICK)
    assert any(record.levelname == "WARNING" for record in caplog.records)
    (results,) = found.results
    assert results.base <= results.majority


# ------------------------------------------------------------------------------------------ live objects


def test_live_models_and_datasets(given, live, place, tmp_path):
    """The rows of a live model on a DatasetDict are those of its folder on the same files."""
    model, tokenizer = live
    before = deepcopy(model.state_dict())
    table = datasets.Dataset.from_csv(str(given[1]), sep="\t", cache_dir=str(tmp_path / "cache"))
    columns = table.to_dict()
    parts = {"train": range(80), "validation": range(80, 120), "test": range(120, 160)}
    named = datasets.DatasetDict(
        {
            split: datasets.Dataset.from_dict({k: [v[i] for i in rows] for k, v in columns.items()})
            for split, rows in parts.items()
        }
    )
    how = {"remove": 0.5, "figures": False, **QUICK}
    one = espalier.compare(model, named, "gnorm", folder=tmp_path / "live", tokenizer=tokenizer, **how)
    two = espalier.compare(given[0], named, "gnorm", folder=tmp_path / "named", **how)
    assert one.results[0].orders == two.results[0].orders
    assert one.results[0].curves == two.results[0].curves
    small = espalier.prune(model, named, "gnorm", remove=0.5, tokenizer=tokenizer, **QUICK)
    sparse = espalier.prune(model, named, target="weights", remove=0.5, tokenizer=tokenizer, **QUICK)
    espalier.recover(model, named, tokenizer=tokenizer, **TRAINING, **EVALUATION)
    trained = espalier.train(model, named, tokenizer=tokenizer, validation=40, **TRAINING)
    assert espalier.evaluate(model, named, tokenizer=tokenizer, **EVALUATION)["sparsity"] == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not model.training
    assert sum(map(len, plan_of(small.model).keep.values())) == 9
    assert zeros(sparse.model).kept == pytest.approx(0.5, abs=1e-3)
    assert not torch.equal(trained.model.classifier.weight, model.classifier.weight)
    assert wrong("tokenizer", espalier.score, model, named)


def test_a_live_model_is_trained_in_its_own_numbering_of_the_classes(live):
    model, tokenizer = deepcopy(live[0]), live[1]
    model.config.label2id, model.config.id2label = {"good": 0, "bad": 1}, {0: "good", 1: "bad"}
    texts = list(dict.fromkeys(toys.sentences(160)))
    labels = ["bad" if i % 4 else "good" for i in range(len(texts))]  # a task counts bad as class 0
    data = datasets.Dataset.from_dict({"text": texts, "label": labels})
    how = {"tokenizer": tokenizer, "max_length": 8}
    trained = espalier.train(model, data, epochs=3, batch_size=4, lr=1e-3, **how)
    shown = trained["epochs"][-1]["validation accuracy"]
    assert espalier.evaluate(trained.model, data, **how)["validation"]["accuracy"] == shown


def test_the_tokenizer_of_the_caller_is_not_changed(given, live):
    model, tokenizer = live[0], toys.tokenizer()
    tokenizer.eos_token, tokenizer.pad_token = tokenizer.pad_token, None
    espalier.score(model, given[1], "magnitude", tokenizer=tokenizer, calibration=4)
    assert tokenizer.pad_token is None


def test_a_live_model_in_16_bits_is_counted_in_16_bits(given, live):
    model, tokenizer = deepcopy(live[0]).half(), live[1]
    found = espalier.prune(model, given[1], "magnitude", remove=0.5, tokenizer=tokenizer, **QUICK)
    assert found["before"]["bytes"] == 2 * found["before"]["parameters"]
    assert found["after"]["bytes"] == 2 * found["after"]["parameters"]
    assert model.dtype == torch.float16


# ------------------------------------------------------------------------------------------ prune heads


def test_a_pruned_model_loads(given, tmp_path):
    for _ in range(2):  # the second time over the first
        found = espalier.prune(*given, "taylor", remove=0.5, folder=tmp_path / "small", **QUICK)
    small = load(tmp_path / "small")
    assert sum(map(len, plan_of(small).keep.values())) == found["after"]["heads"] == 9
    assert found["removed"] == 0.5
    assert found["after"]["bytes"] == (tmp_path / "small" / "model.safetensors").stat().st_size
    assert found["speedup"] > 0
    assert json.loads(json.dumps(found.to_dict())) == found.facts
    want = espalier.evaluate(tmp_path / "small", given[1], **EVALUATION)
    assert {split: want[split] for split in ("validation", "test")} == {
        split: found["after"][split] for split in ("validation", "test")
    }


def test_prune_takes_order_and_rows_from_a_run(given, run, tmp_path, monkeypatch):
    from espalier.experiment.session import Session

    rows = [r for r in read_rows(run.folder / "rows.jsonl") if r["method"] in ("base", "gnorm")]
    measured, real = [], Session.predict
    monkeypatch.setattr(Session, "predict", lambda *args: measured.append(args[2]) or real(*args))
    found = espalier.prune(*given, "gnorm", remove=0.5, run=run.folder, folder=tmp_path / "s", **QUICK)
    assert measured in ([], ["test"])  # only what the run did not measure
    own = [r for r in rows if r["method"] == "gnorm" and r["split"] == "validation"]
    removed = {tuple(unit) for r in own[:9] for unit in r["order"]}
    keep = plan_of(load(tmp_path / "s")).keep
    kept = {(i, head) for i, heads in enumerate(keep.values()) for head in heads}
    assert not removed & kept
    assert len(kept) == 9
    assert found["after"]["validation"]["accuracy"] == own[8]["metrics"]["accuracy"]
    assert found["before"]["test"]["n"] == 36  # 15 % of 240
    want = {"method": "gnorm", "removed": 9, "task": "data.tsv", "model": "model", "run": "run", "seed": 0}
    want |= {"calibration": 16, "validation": 36, "test": 36, "metric": "accuracy"}
    want |= {f"test {when}": found[when]["test"]["accuracy"] for when in ("before", "after")}
    origin = origin_of(tmp_path / "s")
    assert {name: origin[name] for name in want} == want
    assert not (tmp_path / "s-run").exists()


def test_a_run_of_version_1_still_gives_its_order(given, run, tmp_path):
    """`prune` and `evaluate` read older runs, not only reports."""
    old = tmp_path / "old"
    old.mkdir()
    about = read_json(run.folder / "run.json")
    names = {"methods": "strategies", "target": "kind", "splits": "parts", "max_length": "length"}
    about = {names.get(name, name): value for name, value in about.items()} | {"version": 1}
    (old / "run.json").write_text(json.dumps(about))
    with (old / "rows.jsonl").open("w") as file:
        for row in read_rows(run.folder / "rows.jsonl"):
            names = {"method": "strategy", "order": "cut"}
            row = {names.get(name, name): value for name, value in row.items() if name != "phase"}
            file.write(json.dumps({**row, "k": round(18 * row.pop("removed"))}) + "\n")
    small = [espalier.prune(*given, "gnorm", remove=0.5, run=x, **QUICK) for x in (old, run.folder)]
    assert plan_of(small[0].model).keep == plan_of(small[1].model).keep
    points = [
        espalier.evaluate(x, given[1], of=given[0], tolerance=0.05, **EVALUATION)["points"]
        for x in (old, run.folder)
    ]
    assert points[0] == points[1]


def test_the_order_of_heads_is_not_taken_for_neurons(given, run):
    with pytest.raises(ConflictError) as error:
        espalier.prune(*given, "taylor", target="neurons", remove=0.01, run=run.folder, **QUICK)
    assert error.value.path == run.folder


def test_levels_that_a_run_has_passed_are_warned_about(given, tmp_path, caplog):
    how = {"folder": tmp_path / "run", "figures": False, **QUICK}
    for remove, passed in (([0.5, 0.75], 0), ([0.5, 0.75], 0), ([0.25, 0.5, 0.75, 1], 1)):
        caplog.clear()
        espalier.compare(*given, "magnitude", remove=remove, **how)
        assert sum("not measured" in record.message for record in caplog.records) == passed


def test_rows_of_other_examples_are_not_taken(given, run, monkeypatch):
    from espalier.experiment.session import Session

    measured, real = [], Session.predict
    monkeypatch.setattr(Session, "predict", lambda *args: measured.append(args[2]) or real(*args))
    options = {**QUICK, "validation": 20, "test": 20}
    found = espalier.prune(*given, "gnorm", remove=0.5, run=run.folder, **options)
    assert measured == ["validation", "test"] * 2
    alone = espalier.evaluate(given[0], given[1], **{**EVALUATION, "validation": 20, "test": 20})
    assert found["before"]["validation"] == alone["validation"]


def test_an_odd_number_of_units_is_rounded_alike_everywhere(tmp_path, given):
    torch.manual_seed(0)
    model = tiny("bert", "AutoModelForSequenceClassification", num_attention_heads=3, num_hidden_layers=3)
    found = espalier.prune(model, given[1], "magnitude", remove=0.5, tokenizer=toys.tokenizer(), **QUICK)
    assert found["units"] == 9
    assert found["after"]["heads"] == round(0.5 * 9)
    assert found["removed"] == 1 - round(0.5 * 9) / 9


def test_a_run_that_ended_within_the_tolerance_is_warned_about(given, tmp_path, caplog):
    espalier.compare(*given, "gnorm", remove=0.3, folder=tmp_path / "run", figures=False, **QUICK)
    how = {"run": tmp_path / "run", "folder": tmp_path / "s", **QUICK}

    def warnings(**more):
        caplog.clear()
        espalier.prune(*given, "gnorm", **how, **more)
        return [record for record in caplog.records if "ends at" in record.message]

    assert warnings(tolerance=0.99)
    assert not warnings(remove=0.2)
    assert origin_of(tmp_path / "s")["removed"] == 4
    with pytest.raises(UnsupportedError):
        espalier.prune(*given, "gnorm", remove=0.9, **how)


def test_the_most_within_a_tolerance(given, tmp_path):
    method = "magnitude:scope=layer"  # with an order of its own
    small = espalier.prune(*given, method, tolerance=0.2, folder=tmp_path / "small", **QUICK)
    found = espalier.report(tmp_path / "small-run", tmp_path / "r", figures=False)
    assert small["removed"] == pytest.approx(found.results[0].curve(method).within(0.2))
    assert small["removed"] > 0


def test_a_comparison_is_evaluated_at_what_its_methods_chose(given, tmp_path):
    how = {"tolerance": 0.2, "folder": tmp_path / "run", "figures": False, **QUICK}
    espalier.compare(*given, "magnitude,random:2", **how)
    found = espalier.evaluate(tmp_path / "run", given[1], of=given[0], tolerance=0.2, **EVALUATION)
    points = found["points"]
    assert [p["method"] for p in points] == ["base", "magnitude", "random:2"]
    rows = read_rows(tmp_path / "run" / "rows.jsonl")
    for point in points[:2]:
        own = [
            r for r in rows if (r["method"], round(18 * r["removed"])) == (point["method"], point["removed"])
        ]
        assert own
        for row in own:
            assert row["metrics"]["accuracy"] == pytest.approx(point[row["split"]]["accuracy"])
    how = {"tolerance": 0.2, "run": tmp_path / "run", "folder": tmp_path / "small"}
    espalier.prune(*given, "magnitude", **how, **QUICK)
    saved = espalier.evaluate(tmp_path / "small", given[1], **EVALUATION)
    assert saved["parameters"] == points[1]["parameters"] < points[0]["parameters"]
    assert saved["test"] == points[1]["test"]


def test_a_cut_model_is_recovered(given, tmp_path):
    espalier.prune(*given, "taylor", remove=0.5, folder=tmp_path / "small", **QUICK)
    espalier.recover(tmp_path / "small", given[1], tmp_path / "r", **TRAINING, **EVALUATION)
    assert plan_of(load(tmp_path / "r")).keep == plan_of(load(tmp_path / "small")).keep


@pytest.mark.parametrize("way", ["blockwise", "blockwise,finetune"])
def test_a_cut_model_learns_from_sublayers_by_low_rank_additions(given, tmp_path, way):
    espalier.prune(*given, "taylor", remove=0.5, folder=tmp_path / "small", **QUICK)
    how = {"way": way, "teacher": given[0], "lora": 2, **TRAINING}
    found = espalier.recover(tmp_path / "small", given[1], tmp_path / "r", **how, **EVALUATION)
    assert plan_of(load(tmp_path / "r")).keep == plan_of(load(tmp_path / "small")).keep
    assert found["way"] == way
    assert origin_of(tmp_path / "r")["lora"] == {"rank": 2}
    assert weights_of(tmp_path / "r").keys() == weights_of(tmp_path / "small").keys()


@pytest.mark.parametrize(
    ("way", "given_too", "want"),
    [
        ("finetune", {}, (32, 3e-5)),
        ("blockwise", {}, (8, 2e-4)),
        ("blockwise", {"lr": 1e-3}, (8, 1e-3)),
        ("blockwise", {"batch_size": 16, "lr": None}, (16, 2e-4)),
        ("blockwise,finetune", {}, (32, 3e-5)),
    ],
)
def test_a_way_has_its_own_batches_and_rate_unless_others_are_given(given, tmp_path, way, given_too, want):
    espalier.prune(*given, "taylor", remove=0.5, folder=tmp_path / "small", **QUICK)
    teacher = {} if way == "finetune" else {"teacher": given[0]}
    how = {"way": way, "examples": 40, **teacher, **given_too, **EVALUATION}
    found = espalier.recover(tmp_path / "small", given[1], tmp_path / "r", **how)
    settings = json.loads((tmp_path / "r" / "training.json").read_text())["settings"]
    assert (settings["batch_size"], settings["lr"]) == want
    assert found["steps"] == len(way.split(",")) * -(-40 // want[0])


def test_ways_follow_each_other_and_the_best_epoch_is_kept(given, tmp_path):
    espalier.prune(*given, "taylor", remove=0.5, folder=tmp_path / "small", **QUICK)
    how = {"way": "blockwise,distill,finetune", "teacher": given[0], **TRAINING, **EVALUATION}
    found = espalier.recover(tmp_path / "small", given[1], tmp_path / "r", **how)
    assert [row["way"] for row in found["epochs"]] == ["blockwise", "distill", "finetune"]
    scores = [row["validation accuracy"] for row in found["epochs"]]
    assert found["kept_epoch"] == 1 + scores.index(max(scores))
    assert found["after"]["validation"]["accuracy"] == max(scores)
    assert found.notes[0].startswith(f"Epoch {found['kept_epoch']} (")
    one = espalier.recover(tmp_path / "small", given[1], **how | {"way": "blockwise"})
    assert found["steps"] == 3 * one["steps"]
    assert origin_of(tmp_path / "r")["recovered"]["with"] == "blockwise,distill,finetune"
    assert espalier.recover(tmp_path / "small", given[1], tmp_path / "r", **how).facts == found.facts
    for wrong in ("blockwise,hope", "distill,distill", "", "blockwise,"):
        with pytest.raises(InvalidValueError, match="`way`"):
            espalier.recover(tmp_path / "small", given[1], **how | {"way": wrong})


# ------------------------------------------------------------------------------------------ prune weights


def test_weights_in_one_shot(given, tmp_path):
    how = {"target": "weights", "remove": 0.75, "scope": "layer", "folder": tmp_path / "s"}
    found = espalier.prune(*given, **how, **QUICK)
    dense = AutoModelForSequenceClassification.from_pretrained(given[0])
    for site, old in zip(sites(load(tmp_path / "s"), "weights"), sites(dense, "weights")):
        kept = site.linear.weight != 0
        assert int(kept.sum()) == round(0.25 * site.units)
        assert torch.equal(site.linear.weight[kept], old.linear.weight[kept])
        assert old.linear.weight[kept].abs().min() >= old.linear.weight[~kept].abs().max()
    assert found["after"]["sparsity"] == pytest.approx(0.75, abs=1e-3)
    assert found["before"]["sparsity"] == 0
    origin = origin_of(tmp_path / "s")
    assert (origin["method"], origin["scope"], origin["remove"]) == ("magnitude", "layer", 0.75)
    assert origin["sparsity"]["zero"] == found["after"]["sparsity"]
    assert "also" not in origin


def test_weights_during_training_then_evaluated_and_recovered(given, tmp_path):
    how = {"target": "weights", "remove": 0.8, "epochs": 2, "lr": 1e-3, "folder": tmp_path / "s"}
    found = espalier.prune(*given, **how, **QUICK)
    assert found["after"]["sparsity"] == pytest.approx(0.8, abs=1e-3)
    assert espalier.prune(*given, **how, **QUICK).facts == found.facts  # finished: nothing is done again
    again = espalier.evaluate(tmp_path / "s", given[1], **EVALUATION)
    assert {name: again[name] for name in found["after"]} == found["after"]
    mask = zeros(load(tmp_path / "s"))
    for way in ({}, {"way": "distill", "teacher": given[0]}):
        folder = tmp_path / way.get("way", "finetune")
        out = espalier.recover(tmp_path / "s", given[1], folder, **way, **TRAINING, **EVALUATION)
        assert out["before"]["test"] == found["after"]["test"]
        assert out["after"]["sparsity"] == found["after"]["sparsity"]
        after = zeros(load(folder))
        assert all(torch.equal(after[name], mask[name]) for name in mask)
        old, new = weights_of(tmp_path / "s"), weights_of(folder)
        assert any(not torch.equal(old[name], new[name]) for name in old)


def test_another_sparse_model_under_the_same_name_is_recovered_anew(given, tmp_path):
    def sparse(remove):
        how = {"target": "weights", "remove": remove, "folder": tmp_path / "s"}
        espalier.prune(*given, **how, **QUICK)

    def recover(**more):
        return espalier.recover(tmp_path / "s", given[1], tmp_path / "r", **TRAINING, **EVALUATION, **more)

    sparse(0.2)
    recover()
    sparse(0.8)
    with pytest.raises(ConflictError):
        recover()
    assert recover(overwrite=True)["after"]["sparsity"] == pytest.approx(0.8, abs=1e-3)


def test_movement(given, tmp_path):
    how = {"target": "weights", "remove": 0.7, "folder": tmp_path / "m"}
    found = espalier.prune(*given, "movement", **how, **TRAINING, **QUICK)
    assert found["after"]["sparsity"] == pytest.approx(0.7, abs=1e-3)


@pytest.mark.parametrize(("scope", "remove"), [("layer", 0.7), ("2:4", None)])
def test_sparsegpt_saves_the_repaired_weights(given, tmp_path, scope, remove):
    session = espalier.experiment.session.open_session(*given, target="weights", **QUICK)
    dense, want = deepcopy(session.model), session.model
    compensate(want, sites(want, "weights"), session.calibration, remove or 0.5, damping=0.02, scope=scope)
    how = {"target": "weights", "scope": scope, "folder": tmp_path / "s"}
    how |= {} if remove is None else {"remove": remove}
    espalier.prune(*given, "sparsegpt:damping=0.02", **how, **QUICK)
    moved = 0
    for got, other, old in zip(*(sites(m, "weights") for m in (load(tmp_path / "s"), want, dense))):
        assert torch.equal(got.linear.weight, other.linear.weight)
        kept = got.linear.weight != 0
        moved += int((got.linear.weight != old.linear.weight)[kept].sum())
    assert moved
    assert origin_of(tmp_path / "s")["repaired"] is True


def test_zeros_of_a_sparse_model_are_not_repaired_away(given, tmp_path):
    how = {"target": "weights", **QUICK}
    espalier.prune(*given, remove=0.4, folder=tmp_path / "a", **how)
    espalier.prune(tmp_path / "a", given[1], "sparsegpt", remove=0.7, folder=tmp_path / "b", **how)
    before, after = zeros(load(tmp_path / "a")), zeros(load(tmp_path / "b"))
    assert not any((after[name] & ~before[name]).any() for name in before)
    wrong("remove", espalier.prune, tmp_path / "a", given[1], remove=0.3, **how)


def test_a_scope_that_is_not_repaired_is_warned_about(given, tmp_path, caplog):
    session = espalier.experiment.session.open_session(*given, target="weights", **QUICK)
    scores = criteria.load("sparsegpt")(session.model, session.sites, session.calibration)
    want = zero(session.model, remove_lowest(scores, 0.5)).state_dict()
    how = {"target": "weights", "remove": 0.5, "scope": "global", "folder": tmp_path / "s"}
    espalier.prune(*given, "sparsegpt", **how, **QUICK)
    assert any("sparsegpt" in r.message for r in caplog.records if r.levelname == "WARNING")
    assert "repaired" not in origin_of(tmp_path / "s")
    assert all(torch.equal(w, want[name]) for name, w in weights_of(tmp_path / "s").items())


@pytest.mark.parametrize("also", ["embeddings+head+norms", "head"])
def test_weights_outside_the_blocks(given, tmp_path, also):
    named = tuple(also.split("+"))
    found = espalier.prune(*given, target=f"weights+{also}", remove=0.5, folder=tmp_path / "s", **QUICK)
    dense = AutoModelForSequenceClassification.from_pretrained(given[0])
    everything = sites(dense, "weights", also=named)
    want = zero(dense, remove_lowest(criteria.load("magnitude")(dense, everything), 0.5)).state_dict()
    assert all(torch.equal(w, want[name]) for name, w in weights_of(tmp_path / "s").items())
    origin, units = origin_of(tmp_path / "s"), sum(site.units for site in everything)
    assert origin["also"] == list(named) == found["pruned"]["also"]
    assert origin["sparsity"]["weights"] == found["pruned"]["weights"] == units
    assert origin["sparsity"]["zero"] == pytest.approx(0.5, abs=1 / units)


@pytest.mark.parametrize("method", ["magnitude", "movement", "fisher"])
def test_weights_outside_the_blocks_during_training(method, given, tmp_path):
    """Exactly so many of all that was named, and nothing else; recovered, they stay."""
    also = ("embeddings", "norms")
    how = {"target": "weights+embeddings+norms", "remove": 0.7, "folder": tmp_path / "s"}
    espalier.prune(*given, method, **how, **TRAINING, **QUICK)
    model = load(tmp_path / "s")
    before, units = zeros(model, also), sum(site.units for site in sites(model, "weights", also=also))
    assert sum(int(m.sum()) for m in before.values()) == round(0.3 * units)
    assert any("embeddings" in name and not m.all() for name, m in before.items())
    assert (model.classifier.weight != 0).all()
    assert origin_of(tmp_path / "s")["also"] == list(also)
    record = read_json(tmp_path / "s" / "training.json")
    assert record["settings"]["also"] == list(also)
    assert origin_of(tmp_path / "s")["sparsity"]["weights"] == units
    espalier.recover(tmp_path / "s", given[1], tmp_path / "r", **TRAINING, **EVALUATION)
    again = load(tmp_path / "r")
    after = zeros(again, also)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert not torch.equal(again.classifier.weight, model.classifier.weight)


@pytest.mark.parametrize("verb", ["recover", "prune"])
def test_rows_pruned_whole_stay_pruned(verb, given, tmp_path):
    """Tokens and positions that no example has score 0, and their rows are removed: only the plan knows."""
    also = ("embeddings", "norms")
    how = {"scope": "layer", **QUICK, "calibration": 4}
    target = "weights+norms+embeddings"
    found = espalier.prune(*given, "fisher", target=target, remove=0.5, folder=tmp_path / "s", **how)
    before = zeros(load(tmp_path / "s"), also)
    assert found["pruned"]["also"] == list(also)
    assert found["pruned"]["weights"] == sum(m.numel() for m in before.values())
    assert found["pruned"]["zero"] == pytest.approx(1 - before.kept)
    assert any(not m.any(1).all() for name, m in before.items() if "word_emb" in name)
    train = {"epochs": 1, "examples": 64, "batch_size": 8, "lr": 1e-2, "folder": tmp_path / "r"}
    if verb == "recover":
        espalier.recover(tmp_path / "s", given[1], **train, **EVALUATION)
    else:
        espalier.prune(tmp_path / "s", given[1], target="weights", remove=0.6, **train, **how)
    after = zeros(load(tmp_path / "r"), also)
    assert not any((after[name] & ~before[name]).any() for name in before)
    assert origin_of(tmp_path / "r")["also"] == list(also)


def test_a_head_that_is_the_embedding(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(toys.sentences(300)) + "\n")
    tiny("gpt2", "AutoModelForCausalLM").save_pretrained(tmp_path / "gpt2")
    toys.tokenizer().save_pretrained(tmp_path / "gpt2")
    with pytest.raises(InvalidValueError):
        espalier.prune(tmp_path / "gpt2", tmp_path / "text.txt", target="weights+head", remove=0.5, **QUICK)


@pytest.mark.parametrize("method", ["magnitude", "sparsegpt"])
def test_a_model_stored_in_16_bits_stays_so(method, half, given, tmp_path):
    """The measured model is the one in the file, and that is not twice as large."""
    how = {"remove": 0.5, **QUICK}
    found = espalier.prune(half, given[1], method, target="weights", folder=tmp_path / "s", **how)
    size = (half / "model.safetensors").stat().st_size
    assert found["before"]["bytes"] == size
    assert found["after"]["bytes"] == pytest.approx(size, rel=0.02)
    assert {p.dtype for p in load(tmp_path / "s").parameters()} == {torch.float16}
    again = espalier.evaluate(tmp_path / "s", given[1], **EVALUATION)
    assert again["test"] == found["after"]["test"]
    heads = espalier.prune(half, given[1], "magnitude", folder=tmp_path / "h", **how)
    assert {p.dtype for p in load(tmp_path / "h").parameters()} == {torch.float16}
    assert {p.dtype for p in heads.model.parameters()} == {torch.float32}


def test_a_trained_model_is_saved_in_32_bits_with_a_note(half, given, tmp_path):
    how = {"target": "weights", "remove": 0.5, "folder": tmp_path / "s", **TRAINING, **QUICK}
    found = espalier.prune(half, given[1], **how)
    assert any("float16" in note for note in found.notes)
    assert {p.dtype for p in load(tmp_path / "s").parameters()} == {torch.float32}


# ------------------------------------------------------------------------------------------ score, measure


def test_scores(given):
    found = espalier.score(*given, "gnorm", calibration=16)
    assert [len(v) for v in found["scores"].values()] == [6, 6, 6]
    assert {name: values.tolist() for name, values in found.scores.items()} == found["scores"]
    for target in ("neurons", "weights"):
        found = espalier.score(*given, "magnitude", target=target, calibration=4)
        assert found.tables[0].rows
        assert json.dumps(found.to_dict())


def test_a_random_order_follows_the_seed(given):
    for target in ("heads", "weights"):
        how = {"target": target, "calibration": 4}
        found = [espalier.score(*given, "random", seed=seed, **how)["scores"] for seed in (0, 1, 1)]
        assert found[0] != found[1] == found[2]


def test_latency(given, live, tmp_path):
    espalier.prune(*given, "magnitude", remove=0.5, folder=tmp_path / "small", **QUICK)
    found = espalier.measure([tmp_path / "small", live[0]], against=given[0], rounds=2, max_length=16)
    small, same, dense = found["models"]
    assert dense["speedup"] == 1
    assert small["parameters"] < same["parameters"] == dense["parameters"]
    assert json.dumps(found.to_dict())
    assert espalier.measure(live[0], rounds=1, max_length=8)["models"][0]["speedup"] is None
    wrong("max_length", espalier.measure, live[0], max_length=100_000)
    wrong("rounds", espalier.measure, live[0], rounds=0)


def test_train_and_evaluate(given, tmp_path):
    seen = []
    found = espalier.train(given[0], given[1], tmp_path / "t", on_progress=seen.append, **TRAINING)
    assert found["epochs"][0]["loss"] > 0
    assert len(found["epochs"]) == 1
    assert seen[-1].done == seen[-1].total
    assert found.folder == tmp_path / "t"
    assert (
        espalier.evaluate(found.model, given[1], tokenizer=toys.tokenizer(), **EVALUATION)["test"]["n"] == 36
    )


def test_outcomes_show_themselves_and_escape_names():
    found = Outcome({"a": 1}, [Table([{"<b>": "<script>x</script>"}], "<i>", "<u>")], ["<note>"])
    assert "<script>" in repr(found)
    shown = found._repr_html_()
    for text in ("<script>", "<b>", "<i>", "<u>", "<note>"):
        assert text not in shown
    assert "&lt;script&gt;" in shown
    assert found["a"] == 1


# ------------------------------------------------------------------------------------------ refused


@pytest.fixture
def nothing(tmp_path):
    """A model and a task that do not exist: whatever is refused first was refused before loading."""
    return tmp_path / "none", tmp_path / "none.tsv"


WEIGHTS = {"target": "weights", "remove": 0.5}


@pytest.mark.parametrize(
    ("parameter", "options"),
    [
        ("remove", {}),
        ("tolerance", {"remove": 0.5, "tolerance": 0.1}),
        ("remove", {"remove": 0}),
        ("remove", {"remove": 50}),
        ("remove", {"target": "weights"}),
        ("remove", {**WEIGHTS, "scope": "2:4", "remove": 0.3}),
        ("scope", {**WEIGHTS, "scope": "rows"}),
        ("scope", {**WEIGHTS, "scope": "4:2"}),
        ("scope", {"remove": 0.5, "scope": "2:4"}),
        ("target", {**WEIGHTS, "target": "weight"}),
        ("target", {**WEIGHTS, "target": "weights+heads"}),
        ("target", {"remove": 0.5, "target": "heads+head"}),
        ("target", {**WEIGHTS, "target": "weights+embeddings", "method": "wanda"}),
        ("target", {**WEIGHTS, "target": "weights+norms", "method": "sparsegpt"}),
        ("method", {**WEIGHTS, "method": "gnorm"}),
        ("method", {**WEIGHTS, "method": "taylor:step=4"}),
        ("epochs", {**WEIGHTS, "method": "movement"}),
        ("penalty", {"remove": 0.5, "epochs": 2, "method": "taylor", "penalty": 0.1}),
        ("epochs", {"remove": 0.5, "method": "gates"}),
        ("method", {**WEIGHTS, "method": "movement:lr=2", "epochs": 1}),
        ("schedule", {**WEIGHTS, "epochs": 1, "schedule": "cubik"}),
        ("schedule", {"target": "weights", "scope": "2:4", "epochs": 1}),
        ("initial", {**WEIGHTS, "epochs": 1, "initial": 0.8}),
        ("schedule", {**WEIGHTS, "schedule": "linear"}),
        ("lr", {**WEIGHTS, "lr": 1}),
        ("ste", {**WEIGHTS, "ste": True}),
        ("precision", {"remove": 0.5, "precision": "fp16"}),
        ("calibraton", {"remove": 0.5, "calibraton": 3}),
    ],
)
def test_prune_refuses_before_loading(nothing, parameter, options):
    wrong(parameter, espalier.prune, *nothing, **options)


def test_other_verbs_refuse_before_loading(nothing, tmp_path):
    compare, recover = espalier.compare, espalier.recover
    wrong("remove", compare, *nothing, "gnorm", remove=2)
    wrong("methods", compare, *nothing, [])
    wrong("epochs", compare, *nothing, "movement", target="weights")
    wrong("epochs", compare, *nothing, "gnorm", mask_interval=3)
    wrong("lr", compare, *nothing, "gnorm", epochs=1, lr=-1)
    wrong("remove", compare, *nothing, "wanda:scope=2:4,magnitude", target="weights")
    options = {"target": "weights", "remove": 0.5, "epochs": 1, "schedule": "cubic"}
    wrong("schedule", compare, *nothing, "wanda:scope=2:4", **options)
    wrong("task", compare, nothing[0])
    wrong("task", compare, task=nothing[1], recipe="bert-financial-news")
    wrong("figurs", compare, *nothing, "gnorm", figurs=False)
    wrong("epoch", espalier.train, *nothing, epoch=3)
    wrong("tollerance", espalier.evaluate, *nothing, tollerance=3)
    wrong("of", espalier.evaluate, *nothing, of="x")
    wrong("way", recover, *nothing, way="hope")
    wrong("teacher", recover, *nothing, way="distill")
    wrong("teacher", recover, *nothing, teacher="x")
    wrong("teacher", recover, *nothing, way="blockwise")
    wrong("distillation", recover, *nothing, distillation={"temperature": 2})
    wrong("distillation", recover, *nothing, way="blockwise", teacher="x", distillation={"temperature": 2})
    wrong("lora", recover, *nothing, lora=0)
    wrong("lr", recover, *nothing, lr=0.0)
    wrong("batch_size", recover, *nothing, batch_size=0)
    wrong("batch_size", espalier.train, *nothing, batch_size=None)
    wrong("lr", espalier.train, *nothing, lr=None)
    with pytest.raises(UnknownNameError) as error:
        compare(recipe="bert-financial")
    assert error.value.nearest == "bert-financial-news"
    assert not list(tmp_path.iterdir())


def test_folders_that_hold_something_else(given, nothing, run, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("mine")
    for function, options in (
        (espalier.compare, {"folder": mine}),
        (espalier.compare, {"folder": mine / "thesis.tex"}),
        (espalier.prune, {"folder": mine, "remove": 0.5}),
        (espalier.prune, {"folder": mine, **WEIGHTS}),
    ):
        with pytest.raises(FolderError):
            function(*nothing, **options)
    assert [file.name for file in mine.iterdir()] == ["thesis.tex"]
    assert not (tmp_path / "mine-run").exists()
    with pytest.raises(EspalierError):
        espalier.prune(*nothing, remove=0.5, run=mine)
    wrong("method", espalier.prune, *nothing, "magnitude", remove=0.5, run=run.folder)
    with pytest.raises(FolderError):
        espalier.prune(*given, **WEIGHTS, folder=given[0])
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "training.json").write_text("{}")
    with pytest.raises(FolderError):
        espalier.prune(*given, **WEIGHTS, folder=tmp_path / "made")
    for verb in (espalier.evaluate, espalier.recover):
        with pytest.raises(FolderError):  # rows, but no weights
            verb(run.folder, given[1])
    (tmp_path / "begun" / ".espalier-training").mkdir(parents=True)
    with pytest.raises(FolderError):
        espalier.evaluate(tmp_path / "begun", given[1])
    with pytest.raises(FolderError):
        espalier.report(given[0])
    with pytest.raises(FolderError):
        espalier.report(mine)


def test_models_that_cannot_answer_the_task(given, tmp_path):
    tiny("bert").save_pretrained(tmp_path / "bare")
    toys.tokenizer().save_pretrained(tmp_path / "bare")
    with pytest.raises(UnsupportedError):
        espalier.compare(tmp_path / "bare", given[1], "gnorm")
    toys.table_of(tmp_path / "three.tsv", classes=3)
    with pytest.raises(DataError):
        espalier.compare(given[0], tmp_path / "three.tsv", "gnorm")
    with pytest.raises(EspalierError):
        espalier.evaluate(given[0] / "model.safetensors", given[1])
    with pytest.raises(EspalierError):
        espalier.evaluate(tmp_path / "nowhere", given[1])
    with pytest.raises(EspalierError) as error:
        espalier.score(*given, text="sentense")
    assert getattr(error.value, "nearest", "sentence") == "sentence"
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    with pytest.raises((FormatError, FolderError)):
        espalier.evaluate(tmp_path / "broken", given[1])
