"""Predictions in the order of the examples, and how long a model takes."""

import numpy as np
import pytest
import torch
import toys

from espalier.core.errors import DataError, InvalidValueError, NonFiniteError
from espalier.evaluation.latency import time_models
from espalier.evaluation.predictions import PredictionCollector, predict, unpack
from espalier.tasks.batches import batches_of
from espalier.testing.tiny import tiny


def model_and_batches(size=None):
    model = tiny("bert", "AutoModelForSequenceClassification").eval()
    examples = toys.examples(30, seed=1)
    return model, examples, batches_of(examples, toys.tokenizer(), "classification", max_length=16, size=size)


def test_predictions_are_in_the_order_of_the_examples():
    """Whatever the batches are, and whoever runs the model."""
    model, examples, batches = model_and_batches()
    numbers = []
    found = predict(model, batches, on_batch=numbers.append)
    assert sorted(numbers) == list(range(len(batches)))
    alone = batches_of(examples, toys.tokenizer(), "classification", max_length=16, size=1)
    singly = predict(model, alone)
    assert np.array_equal(found.values, singly.values)
    np.testing.assert_allclose(found.losses, singly.losses, rtol=1e-5)
    collector = PredictionCollector(batches)
    with torch.no_grad():
        for number, batch in enumerate(batches):
            collector(number, model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]))
    assert np.array_equal(collector.predictions().values, found.values)
    metrics = found.metrics("classification", np.array(examples.labels, dtype=float))
    assert metrics["accuracy"] == np.mean(found.values == np.array(examples.labels))
    assert metrics["loss"] == pytest.approx(found.losses.mean())


LAYER = "bert.encoder.layer.1.intermediate.dense"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_predictions_that_are_not_finite_name_their_layer(value):
    """Argmax of NaN is class 0, which would be given an accuracy."""
    model, _, batches = model_and_batches()
    layer = model.get_submodule(LAYER)
    with torch.no_grad():
        layer.bias[3] = value
    hooks = sum(len(m._forward_hooks) for m in model.modules())
    with pytest.raises(NonFiniteError) as error:
        predict(model, batches)
    assert (error.value.layer, error.value.batch) == (LAYER, 0)
    assert sum(len(m._forward_hooks) for m in model.modules()) == hooks


def test_a_scoring_pass_refuses_them_too():
    """It collects predictions on the way, with hooks of its own."""
    from espalier.experiment.method import parse_method
    from espalier.experiment.scorer import Scorer

    session = toys.toy_session()
    method = parse_method("taylor", "heads")
    with torch.no_grad():
        session.model.get_submodule(LAYER).weight[0, 0] = float("nan")
    session.calibration.positions = [list(range(len(batch["labels"]))) for batch in session.calibration]
    with pytest.raises(NonFiniteError) as error:
        Scorer(session, method, [], None, []).predictions(session.model, session.sites)
    assert error.value.layer == LAYER


@pytest.mark.parametrize("verb", ["evaluate", "prune", "prune heads", "compare", "recover", "train"])
def test_every_verb_refuses_a_model_with_nan(verb, tmp_path):
    """And leaves nothing behind."""
    import espalier

    model = tiny("bert", "AutoModelForSequenceClassification")
    with torch.no_grad():
        model.get_submodule("bert.embeddings.word_embeddings").weight[5:] = float("nan")
    out = {"folder": tmp_path / "out"}
    more = {
        "prune": {"target": "weights", "remove": 0.5, **out},
        "prune heads": {"method": "random", "remove": 0.5, **out},
        "compare": {"methods": ["random:1"], "remove": 0.5, **out},
        "train": {"epochs": 1, "examples": 8},
        "recover": {"epochs": 1, "examples": 8, **out},
    }.get(verb, {})
    with pytest.raises(InvalidValueError if verb == "train" else NonFiniteError):
        getattr(espalier, verb.split()[0])(model, toys.task(), tokenizer=toys.tokenizer(), **more)
    assert list(tmp_path.iterdir()) == []


def test_swapped_classes_are_found():
    from espalier.experiment.classes import find_swaps

    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=200)
    assert find_swaps(truth, truth) == {}
    assert find_swaps(truth, rng.integers(3, size=200)) == {}
    assert find_swaps(truth, np.zeros(200)) == {}
    turned = np.array([2, 1, 0])[truth]
    assert find_swaps(truth, turned) == {0: 2, 2: 0}
    assert find_swaps(truth, np.where(rng.random(200) < 0.2, truth, turned)) == {0: 2, 2: 0}
    assert find_swaps(truth, np.where(rng.random(200) < 0.5, truth, turned)) == {}
    assert find_swaps(np.arange(8) % 2, 1 - np.arange(8) % 2) == {}  # too few to tell
    assert find_swaps(np.arange(20) % 2, 1 - np.arange(20) % 2) == {0: 1, 1: 0}


def test_damaged_predictions():
    with pytest.raises(DataError):
        unpack("01!0")


def test_latency():
    model, _, batches = model_and_batches()
    ran = []
    model.register_forward_hook(lambda *_: ran.append(1))
    first, second = time_models([model, model], batches[0], rounds=5, warmup=3)
    assert len(ran) == 2 * (5 + 3)
    for found in (first, second):
        assert 0 < found.best <= found.low <= found.median <= found.high
