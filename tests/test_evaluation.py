"""Predictions in the order of the examples, and how long a model takes."""

import numpy as np
import pytest
import torch
import toys

from espalier.core.errors import DataError
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
