"""Intervals: exact where they can be checked, paired, seeded, and quick."""

import math
import time

import numpy as np
import pytest

from espalier.analysis.bootstrap import Bootstrap, bootstraps, draw_counts, value_interval
from espalier.analysis.curves import Curve
from espalier.analysis.results import BASE_KEY, Results, SplitPredictions
from espalier.evaluation import metrics

RNG = np.random.default_rng(5)
A, B, RANDOM = (("a", "one-shot"), ("b", "one-shot"), ("random:6", "one-shot"))
LEVELS = (0.0, 0.25, 0.5, 0.75)


def interval(draws):
    return tuple(np.quantile(draws, (0.025, 0.975)))


def test_counts_are_draws_with_replacement():
    drawn = draw_counts(50, 2000, np.random.default_rng(0))
    assert (drawn.sum(1) == 50).all()
    assert drawn.mean() == pytest.approx(1)
    assert drawn.var() == pytest.approx(1 - 1 / 50, rel=0.05)  # of a binomial


def boot(n=400, **more):
    rng = np.random.default_rng(3)
    truth = rng.integers(2, size=n)
    right = rng.random((4, n)) < np.array([0.9, 0.85, 0.7, 0.5])[:, None]
    worse = right & (rng.random((4, n)) < np.array([1, 0.97, 0.97, 0.97])[:, None])
    trials = np.stack([right & (rng.random((4, n)) < 1 - 0.03 * t) for t in range(6)])
    correct = {A: right[None], B: worse[None], RANDOM: trials, BASE_KEY: right[None, :1]}
    values = {key: np.where(found, truth, 1 - truth) for key, found in correct.items()}
    removed = {**dict.fromkeys(correct, LEVELS), BASE_KEY: (0.0,)}
    return Bootstrap(SplitPredictions(truth, removed, values), "accuracy", **more)


def test_an_interval_is_as_wide_as_theory_says():
    found = boot(draws=4000).score(A, 0.0)
    p = boot().replicates(A)[:, 0].mean()
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * math.sqrt(p * (1 - p) / 400), rel=0.07)
    assert found.low < p < found.high


@pytest.mark.parametrize(("right", "n"), [(9, 9), (0, 9), (4, 9), (40, 40), (200, 200)])
def test_intervals_of_shares_that_draws_cannot_show(right, n):
    """9 of 9 right does not mean that the next one is."""
    from scipy.stats import binomtest

    truth = np.arange(n) % 2
    predictions = np.where(np.arange(n) < right, truth, 1 - truth)
    wanted = binomtest(right, n).proportion_ci(method="wilson")
    found = value_interval("accuracy", truth, predictions)
    assert found == pytest.approx((wanted.low, wanted.high), abs=1e-6)
    boot = Bootstrap(
        SplitPredictions(truth, {BASE_KEY: (0.0,)}, {BASE_KEY: predictions[None, None]}), "accuracy"
    )
    assert boot.score(BASE_KEY, 0.0) == found


def test_a_perfect_f1_has_a_width():
    truth = np.arange(60) % 2
    low, high = value_interval("f1", truth, truth)
    assert 0.9 < low < high == 1


def test_differences_are_paired():
    """`b` is `a` with some predictions spoiled: its difference is far surer than either of them."""
    b = boot()
    alone, together = b.area(A), b.area_difference(A, B)
    assert 0 < together.low < together.high
    assert together.high - together.low < 0.5 * (alone.high - alone.low)
    assert b.area_difference(A, A) == (0.0, 0.0)
    assert b.difference(A, A, 0.5) == (0.0, 0.0)
    assert b.area_difference(B, A).low == pytest.approx(-together.high)
    assert b.difference(A, B, 0.75) == interval(b.replicates(A)[:, 3] - b.replicates(B)[:, 3])
    assert b.change(A, 0.75) == interval(b.replicates(A)[:, 3] - b.replicates(A)[:, 0])
    assert b.change(A, 0.75).high < 0


def test_trials_are_drawn_too():
    """The mean over trials is less sure than it would be if these trials were all there could be."""
    b = boot()
    fixed, truth = b.split.values[RANDOM], b.split.truth
    accuracy = metrics.load("accuracy")
    only_examples = np.mean([accuracy.resample(truth, trial, b.counts)[:, 1] for trial in fixed], axis=0)
    low, high = b.score(RANDOM, 0.25)
    narrow = interval(only_examples)
    assert high - low > 1.2 * (narrow[1] - narrow[0])
    assert low < np.mean(fixed[:, 1] == truth) < high


def test_the_same_seed_gives_the_same_interval():
    assert boot(seed=1).area(A) == boot(seed=1).area(A) != boot(seed=2).area(A)


def test_losses_of_language_models():
    losses = RNG.gamma(2, 1, size=(2, 300))
    b = Bootstrap(SplitPredictions(None, {A: (0.0, 1.0)}, {A: losses[None]}), "perplexity")
    low, high = b.score(A, 1.0)
    assert low < -losses[1].mean() < high < 0
    assert value_interval("perplexity", None, losses[1]) == pytest.approx((math.exp(-high), math.exp(-low)))


def test_no_predictions_no_interval():
    b, nobody = boot(), ("nobody", "one-shot")
    assert b.score(nobody, 0.0) is b.score(A, 0.9) is b.area(nobody) is b.area_difference(A, nobody) is None
    published = Results("BERT", "accuracy", 3, {("gnorm", "one-shot"): Curve((0, 1), (0.9, 0.5))})
    assert bootstraps(published) == {}


def test_seven_methods_of_73_levels_take_seconds():
    n, keys = 2000, [(f"s{i}", "one-shot") for i in range(7)]
    truth = RNG.integers(2, size=n)
    values = {key: RNG.integers(2, size=(1, 73, n), dtype=np.int16) for key in keys}
    values[RANDOM] = RNG.integers(2, size=(25, 25, n), dtype=np.int16)
    every = tuple(k / 72 for k in range(73))
    removed = dict.fromkeys(keys, every) | {RANDOM: every[::3]}
    start = time.process_time()
    b = Bootstrap(SplitPredictions(truth, removed, values), "accuracy")
    assert all(b.area_difference(key, RANDOM, every[::3]) for key in keys)
    assert b.draws == 1000
    assert time.process_time() - start < 8
