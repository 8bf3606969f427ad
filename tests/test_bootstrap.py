"""Intervals: exact where they can be checked, paired, seeded, and quick."""

import math
import time

import numpy as np
import pytest

from espalier.analysis.bootstrap import METRICS, Bootstrap, bootstraps, counts, interval, weights
from espalier.analysis.curves import Curve
from espalier.analysis.results import Answers, Results
from espalier.evaluation import metrics

RNG = np.random.default_rng(5)


def answers(kind, n=70, levels=5):
    """Truths, and answers that get worse from level to level; the last level always says the same."""
    rng = np.random.default_rng(n)
    if kind == "numbers":
        truth = rng.integers(0, 8, size=n) / 2
        guesses = np.stack([np.round(truth + rng.normal(size=n) * (1 + k), 1) for k in range(levels)])
    else:
        truth = rng.integers(kind, size=n)
        wrong = rng.random((levels, n)) < np.linspace(0.1, 0.9, levels)[:, None]
        guesses = np.where(wrong, rng.integers(kind, size=(levels, n)), truth)
    guesses[-1] = guesses[-1][0]
    return truth, guesses


@pytest.mark.parametrize(
    ("metric", "kind"),
    [
        *((metric, classes) for metric in ("accuracy", "f1", "matthews") for classes in (2, 5)),
        *((metric, "numbers") for metric in ("pearson", "spearman")),
    ],
)
def test_a_draw_is_the_metric_of_the_drawn_examples(metric, kind):
    """Weighted counts give what scikit-learn and scipy give on the examples written out."""
    truth, guesses = answers(kind)
    drawn = counts(len(truth), 30, np.random.default_rng(1))
    got = METRICS[metric](truth, guesses, drawn)
    for d, often in enumerate(drawn.astype(int)):
        for level, guess in enumerate(guesses):
            want = metrics.METRICS[metric](np.repeat(truth, often), np.repeat(guess, often))
            assert got[d, level] == pytest.approx(want, abs=1e-12)


def test_a_class_nobody_drew_does_not_count_in_macro_f1():
    truth, guesses = np.array([0, 1, 2, 2]), np.array([[0, 1, 2, 2]])
    drawn = np.array([[2, 2, 0, 0], [1, 1, 1, 1]], dtype=np.float32)
    assert METRICS["f1"](truth, guesses, drawn).tolist() == [[1.0], [1.0]]


def test_counts_are_draws_with_replacement():
    drawn = counts(50, 2000, np.random.default_rng(0))
    assert (drawn.sum(1) == 50).all()
    assert drawn.mean() == pytest.approx(1)
    assert drawn.var() == pytest.approx(1 - 1 / 50, rel=0.05)  # of a binomial


def test_weights_are_the_area():
    curve = Curve((0, 1, 4, 10), (0.9, 0.8, 0.85, 0.3))
    assert np.dot(weights(curve.removed), curve.accuracy) == pytest.approx(curve.area())
    assert weights((0,)).tolist() == [1.0]


def boot(n=400, **more):
    rng = np.random.default_rng(3)
    truth = rng.integers(2, size=n)
    right = rng.random((4, n)) < np.array([0.9, 0.85, 0.7, 0.5])[:, None]
    worse = right & (rng.random((4, n)) < np.array([1, 0.97, 0.97, 0.97])[:, None])
    trials = np.stack([right & (rng.random((4, n)) < 1 - 0.03 * t) for t in range(6)])
    said = {"a": right, "b": worse, "random:6": trials}
    guesses = {name: np.where(r, truth, 1 - truth) for name, r in said.items()}
    return Bootstrap(Answers(truth, dict.fromkeys(said, (0, 1, 2, 3)), guesses), "accuracy", **more)


def test_an_interval_is_as_wide_as_theory_says():
    found = boot(draws=4000).at("a", 0)
    p = boot().replicates("a")[:, 0].mean()
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * math.sqrt(p * (1 - p) / 400), rel=0.07)
    assert found.low < p < found.high


def test_differences_are_paired():
    """`b` is `a` with some answers spoiled: its difference is far surer than either of them."""
    b = boot()
    alone, together = b.area("a"), b.difference("a", "b")
    assert 0 < together.low < together.high
    assert together.high - together.low < 0.5 * (alone.high - alone.low)
    assert b.difference("a", "a") == (0.0, 0.0)
    turned = b.difference("b", "a")
    assert turned.low == pytest.approx(-together.high)
    assert b.difference_at("a", "b", 3) == interval(b.replicates("a")[:, 3] - b.replicates("b")[:, 3])
    assert b.change("a", 3).high < 0


def test_trials_are_drawn_too():
    """The mean over trials is less sure than it would be if these trials were all there could be."""
    b = boot()
    fixed = b.answers.guesses["random:6"]
    only_examples = np.mean(
        [METRICS["accuracy"](b.answers.truth, trial, b._counts)[:, 1] for trial in fixed], axis=0
    )
    low, high = b.at("random:6", 1)
    narrow = interval(only_examples)
    assert high - low > 1.2 * (narrow.high - narrow.low)
    assert low < np.mean(fixed[:, 1] == b.answers.truth) < high


def test_the_same_seed_gives_the_same_interval():
    assert boot(seed=1).area("a") == boot(seed=1).area("a") != boot(seed=2).area("a")


def test_losses_of_language_models():
    losses = RNG.gamma(2, 1, size=(2, 300))
    b = Bootstrap(Answers(None, {"a": (0, 4)}, {"a": losses}), "perplexity")
    low, high = b.at("a", 4)
    assert low < -losses[1].mean() < high < 0


def test_no_answers_no_interval():
    b = boot()
    assert b.at("nobody", 0) is b.at("a", 9) is b.area("nobody") is b.difference("a", "nobody") is None
    published = Results("BERT", "accuracy", 3, curves={"gnorm": Curve((0, 3), (0.9, 0.5))})
    assert bootstraps(published) == {}


def test_seven_strategies_of_73_levels_take_seconds():
    n, names = 2000, [f"s{i}" for i in range(7)]
    truth = RNG.integers(2, size=n)
    guesses = {name: RNG.integers(2, size=(73, n), dtype=np.int16) for name in names}
    guesses["random:25"] = RNG.integers(2, size=(25, 25, n), dtype=np.int16)
    levels = dict.fromkeys(names, tuple(range(73))) | {"random:25": tuple(range(0, 73, 3))}
    start = time.process_time()
    b = Bootstrap(Answers(truth, levels, guesses), "accuracy")
    assert all(b.difference(name, "random:25") for name in names)
    assert b.draws == 1000
    assert time.process_time() - start < 8
