"""Recovering pruned models: fine-tuning, distillation, and the numbers before and after."""

import copy
import json
import math

import numpy as np
import pytest
import torch
import toys
from test_training import bert_without_dropout, run, same, stopping_at, tiny_bert

from espalier import Mask, cut, load, plan_of, sites, zero
from espalier.core.errors import ConflictError, InvalidValueError, UnsupportedError
from espalier.experiment.assessment import assess
from espalier.experiment.recover_model import _named, _outcome_notes
from espalier.testing.architecture import uneven
from espalier.training import Distillation, Hold
from espalier.training.blockwise import Blockwise, distance, writers_of
from espalier.training.distillation import hidden_loss, soft_loss, teacher_layer
from espalier.training.held_mask import mask_of_zeros
from espalier.training.low_rank import LowRank
from espalier.training.run import model_loss
from espalier.training.stages import Stages

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


def test_stages_follow_each_other_and_are_resumed(tmp_path):
    """Each loss has its epochs; an interruption in the second stage changes nothing."""
    teacher, seen = tiny_bert(), []

    def by_labels(model, batch):
        seen.append("finetune")
        return model_loss(model, batch)

    def made():
        return Stages({"blockwise": Blockwise(copy.deepcopy(teacher), name="dense"), "finetune": by_labels})

    whole, model = (bert_without_dropout() for _ in range(2))
    history = run(whole, epochs=4, loss=made())
    half = history["steps"] // 2
    assert len(seen) == half
    with pytest.raises(KeyboardInterrupt):
        run(model, tmp_path, epochs=4, loss=made(), save_every=1, on_progress=stopping_at(half + 2))
    seen.clear()
    again = bert_without_dropout()
    run(again, tmp_path, epochs=4, loss=made(), save_every=1)
    assert same(again, whole)
    assert 0 < len(seen) < half
    settings = json.loads((tmp_path / "training.json").read_text())["settings"]
    assert (settings["loss"], settings["teacher"]) == ("blockwise,finetune", "dense")
    with pytest.raises(ConflictError):
        run(bert_without_dropout(), tmp_path, epochs=4, loss=Blockwise(copy.deepcopy(teacher), name="dense"))


@pytest.mark.parametrize(("metric", "after", "warned"), [("accuracy", 0.7, True), ("perplexity", 0.7, False)])
def test_a_recovery_that_made_validation_worse_is_pointed_out(metric, after, warned):
    values = {"before": 0.8, "after": after}
    facts = {when: {"validation": {"metric": metric, metric: value}} for when, value in values.items()}
    assert any("worse on validation" in note for note in _outcome_notes(facts)) == warned
    facts["after"]["validation"][metric] = None
    assert not _outcome_notes(facts)


@pytest.mark.parametrize("best", [2, None])
def test_the_best_epoch_is_kept_or_the_last_if_none_is_known(best, tmp_path):
    """Also in 16 bits, where the file holds the rounded weights, and the same call finds them again."""
    seen = []

    def evaluate(model):
        seen.append(copy.deepcopy(model.state_dict()))
        return {"validation score": 1.0 if len(seen) == best else None if best is None else 0.0}

    def score(row):
        return -math.inf if row["validation score"] is None else row["validation score"]

    model, how = bert_without_dropout(), dict(epochs=3, evaluate=evaluate, best=score, dtype=torch.float16)
    history = run(model, tmp_path, **how)
    want = seen[(best or 3) - 1]
    assert all(torch.equal(p, want[name].half().float()) for name, p in model.named_parameters())
    assert load(tmp_path).dtype == torch.float16
    assert run(model, tmp_path, **how) == history
    assert len(seen) == 3


def test_weights_too_large_for_a_dtype_are_saved_in_another(tmp_path):
    def large(dtype):
        model = bert_without_dropout()
        model.bert.embeddings.word_embeddings.weight.data[5] = 1e6
        return run(model, tmp_path, dtype=dtype)

    with pytest.raises(InvalidValueError) as error:
        large(torch.float16)
    assert error.value.parameter == "dtype"
    large(torch.bfloat16)  # no step is done again, and none is lost
    assert load(tmp_path).dtype == torch.bfloat16


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


@pytest.mark.parametrize(
    ("theirs", "ours", "agree"),
    [
        ({0: "LABEL_0", 1: "LABEL_1"}, {0: "0", 1: "1"}, True),
        ({0: "LABEL_1", 1: "LABEL_0"}, {0: "0", 1: "1"}, False),
        ({0: "LABEL_0", 1: "LABEL_1"}, {0: "bad", 1: "good"}, False),
    ],
)
def test_classes_that_are_only_numbered_are_the_same(theirs, ours, agree):
    assert (_named(theirs) == _named(ours)) is agree


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


# ------------------------------------------------------------------------------------------ blockwise


def test_the_distance_of_a_sublayer_by_hand():
    theirs = torch.tensor([[[3.0, 4.0], [0.0, 5.0], [9.0, 9.0]]])
    mine = torch.tensor([[[3.0, 3.0], [2.0, 5.0], [0.0, 0.0]]])
    assert distance(mine, theirs, torch.tensor([[1, 1, 0]])).item() == pytest.approx(5 / 50)
    assert distance(mine, theirs, None).item() == pytest.approx((5 + 162) / (50 + 162))


def test_blockwise_reads_no_labels_and_attention_and_networks_apart():
    teacher = bert_without_dropout()
    student = copy.deepcopy(teacher)
    with torch.no_grad():
        student.bert.encoder.layer[1].output.dense.bias += 1
    batch = {"input_ids": torch.randint(4, 60, (3, 8)), "labels": torch.tensor([0, 1, 1])}
    loss = Blockwise(copy.deepcopy(teacher))
    assert loss(teacher, batch).item() == pytest.approx(0, abs=1e-10)
    assert loss(student, batch).item() == loss(student, {"input_ids": batch["input_ids"]}).item() > 0
    loss(student, batch).backward()
    assert student.classifier.weight.grad is None
    last = writers_of(student)["encoder.layer.1/neurons"]
    assert last is student.bert.encoder.layer[1].output.dense
    assert last.bias.grad is not None
    assert len(writers_of(student)) == 2 * student.config.num_hidden_layers


def test_blockwise_brings_sublayers_back_and_skips_those_without_units():
    teacher = bert_without_dropout()
    run(teacher, epochs=6)
    student = copy.deepcopy(teacher)
    places = sites(student)
    mask = {s.name: torch.arange(s.units) % 2 > 0 for s in places} | {places[0].name: torch.zeros(6).bool()}
    cut(student, Mask(mask), report=False)
    batch = {"input_ids": torch.randint(4, 60, (32, 12), generator=torch.Generator().manual_seed(1))}
    loss = Blockwise(copy.deepcopy(teacher))
    before = loss(student, batch).item()
    run(student, epochs=6, loss=loss)
    assert loss(student, batch).item() < 0.5 * before


# ------------------------------------------------------------------------------------------ LoRA


def test_low_rank_additions_are_merged_and_learn_nothing_else():
    model = bert_without_dropout()
    start = copy.deepcopy(model)
    run(model, epochs=2, callback=LowRank(2))
    assert model.state_dict().keys() == start.state_dict().keys()
    assert all(p.requires_grad for p in model.parameters())
    for site, old in zip(sites(model, "weights"), sites(start, "weights")):
        change = site.linear.weight - old.linear.weight
        assert torch.linalg.matrix_rank(change, atol=1e-6).item() <= 2
        assert change.abs().max() > 0
    assert torch.equal(
        model.bert.embeddings.word_embeddings.weight, start.bert.embeddings.word_embeddings.weight
    )
    assert not torch.equal(model.classifier.weight, start.classifier.weight)


def test_an_interrupted_low_rank_training_is_a_plain_model_and_resumes(tmp_path):
    whole, model = bert_without_dropout(), bert_without_dropout()
    names = list(whole.state_dict())
    run(whole, callback=LowRank(2))
    with pytest.raises(KeyboardInterrupt):
        run(model, tmp_path, callback=LowRank(2), save_every=2, on_progress=stopping_at(5))
    assert list(model.state_dict()) == names
    model = bert_without_dropout()
    run(model, tmp_path, callback=LowRank(2))
    assert same(whole, model)
    again = bert_without_dropout()
    run(again, tmp_path, callback=LowRank(2))  # finished: loaded
    assert same(whole, again)


def test_low_rank_additions_would_fill_zeros():
    model = bert_without_dropout()
    zero(model, Mask({s.name: torch.rand(s.shape) > 0.5 for s in sites(model, "weights")}))
    with pytest.raises(UnsupportedError):
        run(model, callback=LowRank(2))


# ------------------------------------------------------------------------------------------ the best epoch


@pytest.mark.parametrize("best", [0, 1, 2])
def test_the_best_epoch_is_kept(best, tmp_path):
    """Also after an interruption."""
    wanted, model, seen = bert_without_dropout(), bert_without_dropout(), []

    def evaluate(model):
        seen.append(copy.deepcopy(model.state_dict()))
        return {"score": float(len(seen) - 1 == best)}

    def score(row):
        return row["score"]

    run(wanted, epochs=3, evaluate=evaluate, best=score)
    assert all(torch.equal(t, seen[best][name]) for name, t in wanted.state_dict().items())
    seen.clear()
    how = {"epochs": 3, "evaluate": evaluate, "best": score}
    with pytest.raises(KeyboardInterrupt):
        run(model, tmp_path, **how, save_every=1, on_progress=stopping_at(5))
    model = bert_without_dropout()
    run(model, tmp_path, **how)
    assert same(model, wanted)
