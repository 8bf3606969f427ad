"""Metrics: every one in the folder, alone and under the draws of a bootstrap."""

import json

import numpy as np
import pytest

from espalier.core.errors import UnknownNameError
from espalier.evaluation import metrics
from espalier.evaluation.predictions import Predictions, pack, unpack


def example(kind, classes=2, n=70, levels=5):
    """Labels, and predictions that get worse from level to level; those of the last level are constant."""
    rng = np.random.default_rng(n)
    if kind == "classification":
        truth = rng.integers(classes, size=n)
        wrong = rng.random((levels, n)) < np.linspace(0.1, 0.9, levels)[:, None]
        predictions = np.where(wrong, rng.integers(classes, size=(levels, n)), truth)
    elif kind == "regression":
        truth = rng.integers(0, 8, size=n) / 2
        predictions = np.stack([np.round(truth + rng.normal(size=n) * (1 + k), 1) for k in range(levels)])
    else:
        return None, rng.gamma(2, 1, size=(levels, n))
    predictions[-1] = predictions[-1][0]
    return truth, predictions


def drawn(n, draws=20):
    rng = np.random.default_rng(1)
    counts = [np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(draws)]
    return np.stack([np.ones(n), *counts]).astype(np.float32)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("name", metrics.names())
def test_resampling_is_the_metric_of_the_drawn_examples(name, classes):
    """The first draw has every example once: the metric itself."""
    metric = metrics.load(name)
    truth, predictions = example(metric.kind, classes)
    assert (truth is not None) == metric.needs_truth
    counts = drawn(predictions.shape[1])
    got = metric.resample(truth, predictions, counts)
    assert got.shape == (len(counts), len(predictions))
    for draw, often in enumerate(counts.astype(int)):
        for level, values in enumerate(predictions):
            labels = None if truth is None else np.repeat(truth, often)
            value = metric(labels, np.repeat(values, often))
            assert got[draw, level] == pytest.approx(metric.score(value), abs=1e-12)
            assert metric.value(metric.score(value)) == pytest.approx(value)


@pytest.mark.parametrize("name", metrics.names())
def test_a_better_model_has_a_higher_score(name):
    metric = metrics.load(name)
    truth, predictions = example(metric.kind)
    if truth is None:
        better, worse = predictions[0], predictions[0] + 1
    else:
        better, worse = truth, predictions[1]
    assert metric.score(metric(truth, better)) > metric.score(metric(truth, worse))


def test_a_class_that_was_not_drawn_does_not_count_in_macro_f1():
    truth, predictions = np.array([0, 1, 2, 2]), np.array([[0, 1, 2, 2]])
    counts = np.array([[2, 2, 0, 0], [1, 1, 1, 1]], dtype=np.float32)
    assert metrics.load("f1").resample(truth, predictions, counts).tolist() == [[1.0], [1.0]]


def test_a_metric_is_added_by_a_file(tmp_path, monkeypatch):
    """It is listed, belongs to its kind of task, and is resampled without code of its own."""
    (tmp_path / "error_rate.py").write_text(
        "import numpy as np\n"
        "from espalier.evaluation.metrics import metric\n"
        "@metric('classification', label='error', share=True, lower_is_better=True)\n"
        "def error_rate(truth, predictions):\n"
        "    return np.mean(truth != predictions)\n"
    )
    monkeypatch.setattr(metrics, "__path__", [*metrics.__path__, str(tmp_path)])
    assert "error_rate" in metrics.names()
    assert "error_rate" in metrics.for_kind("classification")
    truth, predictions = example("classification")
    counts = drawn(len(truth))
    error, accuracy = metrics.load("error_rate"), metrics.load("accuracy")
    found = Predictions(predictions[0], np.ones(len(truth))).metrics("classification", truth)
    assert found["error_rate"] == pytest.approx(1 - found["accuracy"])
    want = accuracy.resample(truth, predictions, counts) - 1
    assert error.resample(truth, predictions, counts) == pytest.approx(want)
    assert (error.name, error.label, error.share, error.lower_is_better) == (
        "error_rate",
        "error",
        True,
        True,
    )


@pytest.mark.parametrize("name", ["matthews", "pearson", "spearman"])
def test_a_metric_of_constant_truths_is_undefined(name):
    metric, values = metrics.load(name), np.array([1.0, 2.0, 3.0])
    for truth, predictions in ((np.full(3, 2.0), values), (np.array([1.0]), np.array([2.0]))):
        assert metric.defined(truth, predictions) is None
        found = Predictions(predictions, np.ones(len(truth))).metrics(metric.kind, truth)
        assert found[name] is None
        json.dumps(found, allow_nan=False)
    assert metric.defined(values, np.full(3, 2.0)) == 0


@pytest.mark.parametrize("kind", ["classification", "regression", "language"])
def test_no_metric_of_one_class_or_one_example_is_nan(kind):
    for n in (1, 2, 5):
        truth = None if kind == "language" else np.zeros(n)
        for values in (np.zeros(n), np.arange(n, dtype=float)):
            json.dumps(Predictions(values, np.ones(n)).metrics(kind, truth), allow_nan=False)


def test_an_unknown_metric():
    with pytest.raises(UnknownNameError) as error:
        metrics.load("acuracy")
    assert (error.value.parameter, error.value.nearest) == ("metric", "accuracy")


def test_no_better_than_the_most_frequent_class():
    truth = np.array([0, 1, 1, 1])
    assert metrics.majority_share(truth) == 0.75
    assert metrics.check_above_majority(truth, 0.75)
    assert not metrics.check_above_majority(truth, 0.76)
    assert not metrics.check_above_majority(None, 0.1)
    assert not metrics.check_above_majority(truth, None)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("classification", [0, 35, 10]),
        ("classification", [0, 36, 10]),
        ("regression", [0.5, -1.25, 3]),
        ("classification", []),
    ],
)
def test_packed_predictions_are_read_back(kind, values):
    packed = pack(np.array(values, dtype=float), kind)
    assert unpack(packed).tolist() == values
    assert isinstance(packed, str) == (kind == "classification" and 36 not in values)
