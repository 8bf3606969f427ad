"""Recovering pruned models: fine-tuning, distillation, and the numbers before and after."""

import copy
import json
import math

import numpy as np
import pytest
import torch
import toys
from commands import refused, typed
from test_training import bert_without_dropout, run, same, stopping_at, tiny_bert

from espalier import Mask, cut, load, plan_of, sites, zero
from espalier.core.errors import ConflictError, InvalidValueError, UnsupportedError
from espalier.experiment.assessment import assess
from espalier.testing.architecture import uneven
from espalier.training import Distillation, Hold
from espalier.training.distillation import hidden_loss, soft_loss, teacher_layer
from espalier.training.held_mask import mask_of_zeros

QUICK = ["--validate", "40", "--test", "40", "--length", "32"]


# ------------------------------------------------------------------------------------------ distillation


def test_soft_loss_by_hand():
    mine, theirs, t = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]), 2.0
    p = [1 / (1 + math.e), math.e / (1 + math.e)]  # softmax of 0, 1
    q = [math.exp(0.5) / (1 + math.exp(0.5)), 1 / (1 + math.exp(0.5))]
    want = t**2 * sum(a * math.log(a / b) for a, b in zip(p, q))
    assert soft_loss(mine, theirs, t).item() == pytest.approx(want, rel=1e-6)
    assert soft_loss(theirs, theirs, t).item() == pytest.approx(0, abs=1e-7)


def test_hidden_states_are_compared_without_padding():
    mine, theirs = torch.zeros(1, 3, 2), torch.tensor([[[1.0, 3.0], [0.0, 2.0], [9.0, 9.0]]])
    mask = torch.tensor([[1, 1, 0]])
    assert hidden_loss([mine], [theirs], mask).item() == pytest.approx((5 + 2) / 2)
    assert hidden_loss([mine, mine], [mine, theirs], mask).item() == pytest.approx((5 + 2) / 4)
    with pytest.raises(InvalidValueError) as error:
        hidden_loss([mine], [torch.zeros(1, 3, 4)], None)
    assert error.value.parameter == "hidden_weight"


def test_layers_are_matched_by_depth():
    assert [teacher_layer(i, 7, 7) for i in range(7)] == list(range(7))
    assert [teacher_layer(i, 4, 7) for i in range(4)] == [0, 2, 4, 6]
    assert teacher_layer(0, 1, 5) == 4


def test_a_student_equal_to_its_teacher_loses_only_by_the_labels():
    model = bert_without_dropout().train()
    batch = {"input_ids": torch.randint(4, 60, (3, 8)), "labels": torch.tensor([0, 1, 1])}
    loss = Distillation(copy.deepcopy(model), soft_weight=0.25, hidden_weight=1.0)(model, batch)
    assert loss.item() == pytest.approx(0.75 * model(**batch).loss.item(), rel=1e-5)


def test_the_student_approaches_the_teacher_and_the_teacher_does_not_change():
    teacher = bert_without_dropout()
    run(teacher, epochs=6)
    frozen, student = copy.deepcopy(teacher), copy.deepcopy(teacher)
    cut(student, uneven(sites(student), 1), report=False)
    ids = torch.randint(4, 60, (64, 12), generator=torch.Generator().manual_seed(1))

    def apart(model):
        with torch.no_grad():
            return soft_loss(model(ids).logits, teacher(ids).logits, 1.0).item()

    before = apart(student)
    run(student, epochs=4, loss=Distillation(teacher, soft_weight=1.0))
    assert apart(student) < 0.5 * before
    assert same(teacher, frozen)
    assert plan_of(student).kept < 1  # still cut


def test_soft_predictions_of_a_language_model():
    from espalier.testing.tiny import tiny

    torch.manual_seed(0)
    model = tiny("gpt2", "AutoModelForCausalLM").eval()
    ids = torch.randint(0, 50, (2, 6))
    given = {"input_ids": ids, "labels": ids, "use_cache": False}
    loss = Distillation(copy.deepcopy(model), kind="language", soft_weight=0.5)(model, given)
    assert loss.item() == pytest.approx(0.5 * model(**given).loss.item(), rel=1e-5)


def test_resumed_distillation_gives_the_same_weights(tmp_path):
    """Zeros stay zeros, and the weights are those of an uninterrupted run."""
    teacher = tiny_bert()

    def sparse():
        model = tiny_bert()
        generator = torch.Generator().manual_seed(3)
        found = sites(model, "weights")
        return zero(model, Mask({s.name: torch.rand(s.shape, generator=generator) < 0.4 for s in found}))

    def learn(model, folder=None, **more):
        loss = Distillation(copy.deepcopy(teacher), name="dense")
        return run(model, folder, callback=Hold(), loss=loss, **more)

    whole, model = sparse(), sparse()
    mask = mask_of_zeros(sites(whole, "weights"))
    learn(whole)
    with pytest.raises(KeyboardInterrupt):
        learn(model, tmp_path, save_every=2, on_progress=stopping_at(9))
    again = sparse()
    learn(again, tmp_path, save_every=2)
    assert same(again, whole)
    got = mask_of_zeros(sites(load(tmp_path), "weights"))
    assert all(torch.equal(got[name], mask[name]) for name in mask)
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["settings"]["teacher"] == "dense"
    with pytest.raises(ConflictError) as error:
        run(sparse(), tmp_path, callback=Hold())
    assert error.value.differences.startswith("teacher dense, now not set")
    teacher.classifier.weight.data += 1
    with pytest.raises(ConflictError) as error:
        learn(sparse(), tmp_path)
    assert error.value.differences.startswith("teacher_fingerprint ")


def test_distillation_refuses_wrong_values():
    model = tiny_bert()
    for wrong in ({"temperature": 0}, {"soft_weight": 2}, {"hidden_weight": -1}):
        with pytest.raises(InvalidValueError) as error:
            Distillation(model, **wrong)
        assert error.value.parameter == next(iter(wrong))
    batch = {"input_ids": torch.randint(4, 60, (3, 8)), "labels": torch.tensor([0, 1, 1])}
    with pytest.raises(UnsupportedError):
        Distillation(tiny_bert(num_labels=5))(model, batch)


# ------------------------------------------------------------------------------------------ evaluating


def test_an_assessment():
    session = toys.toy_session()
    found = assess(session, session.model)
    with torch.no_grad():
        predicted = session.predict(session.model, "test").values
    right = predicted == np.array(session.task.test.labels)
    assert found["test"]["accuracy"] == right.mean()
    assert found["test"]["low"] <= right.mean() <= found["test"]["high"]
    assert found["test"]["n"] == len(session.task.test)
    spread = math.sqrt(right.mean() * (1 - right.mean()) / len(right))
    width = found["test"]["high"] - found["test"]["low"]
    assert width == pytest.approx(2 * 1.96 * spread, rel=0.15)
    zero(session.model, Mask({s.name: torch.zeros(s.shape) for s in sites(session.model, "weights")}))
    after = assess(session, session.model)
    assert after["sparsity"] == 1
    assert after["prunable_zeros"] == after["prunable"] <= after["zeros"] < after["parameters"]
    language = toys.toy_session("gpt2")
    found = assess(language, language.model)["validation"]
    assert found["low"] < found["perplexity"] < found["high"]
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))


# --- through the command line


def test_prune_weights_at_once(place, tmp_path):
    words = ["prune", place / "model", "--task", place / "data.tsv", "--what", "weights"]
    row = json.loads(
        typed(*words, "--keep", "0.25", "--scope", "layer", "-o", tmp_path / "s", "--json", *QUICK)
    )
    model, dense = load(tmp_path / "s"), load_dense(place)
    for site, old in zip(sites(model, "weights"), sites(dense, "weights")):
        living = site.linear.weight != 0
        assert int(living.sum()) == round(0.25 * site.units)
        assert torch.equal(site.linear.weight[living], old.linear.weight[living])
        # the largest of each matrix
        assert old.linear.weight[living].abs().min() >= old.linear.weight[~living].abs().max()
    assert row["after"]["sparsity"] == pytest.approx(0.75, abs=1e-3)
    assert row["before"]["sparsity"] == 0
    told = json.loads((tmp_path / "s" / "plan.json").read_text())["origin"]
    assert (told["by"], told["scope"], told["keep"]) == ("magnitude", "layer", 0.25)
    assert told["sparsity"]["zero"] == row["after"]["sparsity"]
    assert "test examples" in typed(*words, "--keep", "0.5", "-o", tmp_path / "t", *QUICK)


def load_dense(place):
    import transformers

    return transformers.AutoModelForSequenceClassification.from_pretrained(place / "model")


def test_prune_weights_while_training_then_evaluate_and_recover(place, tmp_path):
    task = ["--task", place / "data.tsv"]
    words = ["prune", place / "model", *task, "--what", "weights", "--keep", "0.2", "--epochs", "2"]
    words += ["--rate", "1e-3", "-o", tmp_path / "s", "--json", *QUICK]
    row = json.loads(typed(*words))
    assert row["after"]["sparsity"] == pytest.approx(0.8, abs=1e-3)
    assert json.loads(typed(*words)) == row  # finished: nothing is done again
    again = json.loads(typed("evaluate", tmp_path / "s", *task, "--json", *QUICK))
    assert {name: again[name] for name in row["after"]} == row["after"]
    assert "95 % of accuracy" in typed("evaluate", tmp_path / "s", *task, *QUICK)
    mask = mask_of_zeros(sites(load(tmp_path / "s"), "weights"))
    for how in (["--with", "finetune"], ["--with", "distil", "--teacher", place / "model"]):
        out = tmp_path / how[1]
        done = ["recover", tmp_path / "s", *task, *how, "-o", out, "--rate", "1e-3", *QUICK]
        found = json.loads(typed(*done, "--json"))
        assert found["before"]["test"] == row["after"]["test"]
        assert found["after"]["sparsity"] == row["after"]["sparsity"]
        after = mask_of_zeros(sites(load(out), "weights"))
        assert all(torch.equal(after[name], mask[name]) for name in mask)
        assert not same(load(out), load(tmp_path / "s"))


def test_another_sparse_model_under_the_same_name_is_not_recovered_already(
    place, tmp_path, capsys, monkeypatch
):
    task = ["--task", place / "data.tsv", *QUICK]
    sparse = ["prune", place / "model", *task, "--what", "weights", "-o", tmp_path / "s"]
    recover = ["recover", tmp_path / "s", *task, "-o", tmp_path / "r", "--examples", "32", "--json"]
    typed(*sparse, "--keep", "0.8")
    typed(*recover)
    typed(*sparse, "--keep", "0.2")
    assert "has other weights than then" in refused(capsys, monkeypatch, *recover)
    found = json.loads(typed(*recover, "--fresh"))
    assert found["after"]["sparsity"] == pytest.approx(0.8, abs=1e-3)


def test_prune_by_movement(place, tmp_path):
    words = ["prune", place / "model", "--task", place / "data.tsv", "--what", "weights"]
    words += ["--by", "movement", "--keep", "0.3", "--epochs", "1", "--examples", "64"]
    row = json.loads(typed(*words, "-o", tmp_path / "m", "--json", *QUICK))
    assert row["after"]["sparsity"] == pytest.approx(0.7, abs=1e-3)


def test_a_cut_model_is_recovered(place, tmp_path):
    task = ["--task", place / "data.tsv", *QUICK]
    small = tmp_path / "small"
    typed("prune", place / "model", *task, "--by", "taylor", "--keep", "0.5", "-o", small)
    out = typed("recover", small, *task, "-o", tmp_path / "r", "--rate", "1e-3")
    assert "validation examples" in out
    assert plan_of(load(tmp_path / "r")).keep == plan_of(load(small)).keep


def test_a_comparison_is_evaluated_at_what_its_strategies_chose(place, tmp_path):
    """The very numbers of the run where the data is the same, and those of the saved model."""
    task, run, small = ["--task", place / "data.tsv", *QUICK], tmp_path / "run", tmp_path / "small"
    by = ["--by", "magnitude,random:2", "--calibrate", "8"]
    typed("compare", place / "model", *task, *by, "--within", "0.2", "--no-figures", "-o", run)
    asked = ["evaluate", run, "--of", place / "model", "--within", "0.2", *task]
    points = json.loads(typed(*asked, "--json"))["points"]
    assert [p["strategy"] for p in points] == ["base", "magnitude", "random:2"]
    rows = [json.loads(line) for line in (run / "rows.jsonl").read_text().splitlines()]
    for point in points[:2]:
        same = [r for r in rows if (r["strategy"], r["k"]) == (point["strategy"], point["removed"])]
        for row in same:
            assert row["metrics"]["accuracy"] == pytest.approx(point[row["split"]]["accuracy"])
        assert same
    chosen = ["--from", run, "--by", "magnitude", "--within", "0.2", "-o", small, "--json"]
    typed("prune", place / "model", *task, *chosen)
    saved = json.loads(typed("evaluate", small, *task, "--json"))
    assert saved["parameters"] == points[1]["parameters"] < points[0]["parameters"]
    assert saved["test"] == points[1]["test"]
    assert "each removed within 0.2" in typed(*asked)


def test_wrong_commands_say_what_to_type(place, tmp_path, capsys, monkeypatch):
    both = (capsys, monkeypatch)
    task = ["--task", place / "data.tsv", *QUICK]
    prune = ["prune", place / "model", *task, "--what", "weights", "-o", tmp_path / "x"]
    assert "--keep 0.5" in refused(*both, *prune)
    assert "--keep 0.5" in refused(*both, *prune, "--within", "0.01")
    assert "did you mean 'layer'" in refused(*both, *prune, "--keep", "0.5", "--scope", "layers")
    assert "not single weights" in refused(*both, *prune, "--keep", "0.5", "--by", "gnorm")
    assert "in one process" in refused(*both, *prune, "--keep", "0.5", "--processes", "2")
    assert "--epochs 1" in refused(*both, *prune, "--keep", "0.5", "--by", "movement")
    wrong = [*prune, "--keep", "0.5", "--epochs", "1", "--schedule", "cubik"]
    assert "did you mean 'cubic'" in refused(*both, *wrong)
    heads = [*prune[:-4], "--keep", "0.5", "--epochs", "2", "-o", tmp_path / "x"]
    assert "espalier recover" in refused(*both, *heads)
    recover = ["recover", place / "model", *task, "-o", tmp_path / "x"]
    assert "--teacher FOLDER" in refused(*both, *recover, "--with", "distil")
    assert "--with finetune" in refused(*both, *recover, "--with", "hope")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rows.jsonl").write_text("")
    (tmp_path / "run" / "run.json").write_text('{"kind": "heads"}')
    assert "--of MODEL" in refused(*both, "evaluate", tmp_path / "run", *task)
    said = refused(*both, "recover", tmp_path / "run", *task, "-o", tmp_path / "x")
    assert f"--from {tmp_path / 'run'}" in said
    (tmp_path / "run" / "run.json").write_text('{"kind": "weights"}')
    assert "espalier report" in refused(*both, "evaluate", tmp_path / "run", *task)
    said = refused(*both, "recover", tmp_path / "run", *task, "-o", tmp_path / "x")
    assert "--what weights" in said
    at_once = ["prune", place / "model", *task, "--what", "weights", "--keep", "0.5"]
    assert "itself" in refused(*both, *at_once, "-o", place / "model")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "training.json").write_text("{}")
    assert "would be lost" in refused(*both, *at_once, "-o", tmp_path / "made")
    typed(*at_once, "-o", tmp_path / "half")
    more = ["prune", tmp_path / "half", *task, "--what", "weights", "--keep", "0.7"]
    said = " ".join(refused(*both, *more, "-o", tmp_path / "x").split())
    assert "half is 50 % zero already, so --keep 0.7 cannot be reached" in said
    assert "espalier evaluate" in refused(*both, "report", place / "model")
    file = place / "model" / "model.safetensors"
    assert "could not be" in refused(*both, "encode", file, "-o", file)
    said = " ".join(refused(*both, "evaluate", file, *task).split())
    assert f"Type {place / 'model'}" in said
    of = ["--of", place / "model"]
    assert "is none" in refused(*both, "evaluate", place / "model", *of, *task)
    (tmp_path / "begun" / ".espalier-training").mkdir(parents=True)
    assert "not finished" in refused(*both, "evaluate", tmp_path / "begun", *task)


def test_what_would_not_be_heard_is_refused_before_the_data_is_read(tmp_path, capsys, monkeypatch):
    both = (capsys, monkeypatch)
    nothing = [
        "prune",
        tmp_path / "no-model",
        "--task",
        tmp_path / "no-data.tsv",
        "-o",
        tmp_path / "x",
    ]
    weights = [*nothing, "--what", "weights"]
    assert "leave --keep out" in refused(*both, *weights, "--scope", "2:4", "--keep", "0.3")
    assert "did you mean 'row'" in refused(*both, *weights, "--scope", "rows", "--keep", "0.3")
    assert "did you mean 'wanda'" in refused(*both, *weights, "--by", "wnada", "--keep", "0.3")
    for by in ("magnitude:reverse", "taylor:static", "random:3", "taylor:step=4"):
        assert "criterion and its options alone" in refused(*both, *weights, "--by", by, "--keep", "0.3")
    said = refused(*both, *weights, "--by", "magnitude:scope=layer", "--keep", "0.3")
    assert "Type --by magnitude --scope layer" in " ".join(said.split())
    said = refused(*both, *weights, "--by", "taylor:scope=2:4:signed=true", "--keep", "0.3")
    assert "Type --by taylor:signed=true --scope 2:4" in " ".join(said.split())
    said = " ".join(refused(*both, *weights, "--by", "wnada", "--keep", "0.3").split())
    assert "for weights: fisher, grasp" in said
    assert "did you mean 'weights'" in refused(*both, *nothing, "--what", "weight", "--keep", "0.3")
    trained = [*weights, "--keep", "0.3", "--epochs", "1"]
    assert "did you mean 'cubic'" in refused(*both, *trained, "--schedule", "cubc")
    assert "this one from 0.2 to 0.3" in refused(*both, *trained, "--initial", "0.2")
    assert "until is a fraction" in refused(*both, *trained, "--until", "2")
    said = refused(*both, *trained, "--schedule", "one-shot", "--until", "0.5", "--refresh", "3")
    assert "--until, --refresh is for weights that go little by little" in " ".join(said.split())
    said = refused(*both, *weights, "--scope", "2:4", "--epochs", "1")
    assert "add --schedule one-shot" in said
    learned = [*weights, "--by", "movement", "--keep", "0.3"]
    assert "give it --epochs 1" in refused(*both, *learned)
    assert "leave --straight and --l1 out" in refused(*both, *learned, "--epochs", "1", "--straight")
    assert "no-data" in refused(*both, *learned, "--epochs", "1")
    assert "from 1 to m of them" in refused(*both, *weights, "--scope", "4:2")
    assert "more than 0" in refused(*both, *trained, "--rate", "-1")
    for by in ("taylor:signed=true", "random"):  # these are fine, the data is not
        assert "no-data" in refused(*both, *weights, "--by", by, "--keep", "0.3")
    assert "--scope is for single weights" in refused(*both, *nothing, "--keep", "0.5", "--scope", "row")
    for epochs in (["--epochs", "1"], []):
        said = refused(*both, *weights, "--by", "movement:lr=2", "--keep", "0.3", *epochs)
        assert "lr is for scoring" in said
        assert "Type --by movement --epochs 1" in said
    for option in (
        *("schedule linear", "rate 1", "batch 3", "examples 4", "initial .9", "until .5"),
        *("refresh 3", "straight", "l1 5", "fresh"),
    ):
        said = refused(*both, *weights, "--keep", "0.3", *f"--{option}".split())
        assert f"--{option.split()[0]} is for pruning while training" in said
        assert "add --epochs 1" in said
    said = refused(*both, *weights, "--keep", "0.3", "--l1", "5", "--straight")
    assert "--straight, --l1 is for" in said
    assert "no-data" in refused(*both, *weights, "--keep", "0.3", "--schedule", "one-shot")
    recover = ["recover", *nothing[1:]]
    for option in ("soft", "hidden", "temperature"):
        said = refused(*both, *recover, f"--{option}", "0.9")
        assert f"--{option} is for learning from the dense model" in said
        assert "--with distil --teacher FOLDER" in said
    distil = [*recover, "--with", "distil", "--teacher"]
    assert "no model" in refused(*both, *distil, tmp_path / "nobody")
    assert "soft from 0 to 1" in refused(*both, *distil, tmp_path / "nobody", "--soft", "3")
    assert "more than 0" in refused(*both, *recover, "--rate", "0")
    assert "did you mean 'bf16'" in refused(*both, *nothing, "--keep", "0.5", "--precision", "fp16")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "notes.txt").write_text("mine")
    assert "will not be replaced" in refused(*both, *weights, "--keep", "0.3")
