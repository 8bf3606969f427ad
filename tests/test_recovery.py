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
