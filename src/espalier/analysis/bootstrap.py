"""Bootstrap intervals. Examples are drawn once for all methods, so differences between methods are paired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..evaluation import metrics
from .curves import area_weights
from .results import BASE_KEY, Key, Results, SplitPredictions

QUANTILES = (0.025, 0.975)
NORMAL = 1.959964  # the upper quantile of the normal distribution
FEW = 50  # examples: with fewer, draws of a share are too coarse


class Interval(NamedTuple):
    """The middle 95 % of the draws."""

    low: float
    high: float


def bootstraps(results: Results) -> dict[str, Bootstrap]:
    """Return the bootstrap of each split whose predictions were kept."""
    needs_truth = metrics.load(results.metric).needs_truth
    return {
        split: Bootstrap(found, results.metric)
        for split, found in results.predictions.items()
        if found.values and (found.truth is not None) == needs_truth
    }


def value_interval(metric: str, truth: np.ndarray | None, predictions: np.ndarray) -> Interval:
    """Return the interval of a defined metric of one model, as values a reader expects (a perplexity)."""
    split = SplitPredictions(truth, {BASE_KEY: (0.0,)}, {BASE_KEY: predictions[None, None]})
    found = Bootstrap(split, metric).score(BASE_KEY, 0.0)
    assert found is not None
    return Interval(*sorted(map(metrics.load(metric).value, found)))


def change_draws(
    metric: str, truth: np.ndarray | None, before: np.ndarray, after: np.ndarray, seed: int = 0
) -> np.ndarray:
    """Return the change of the score from one model's predictions to another's in each draw, paired."""
    found = metrics.load(metric)
    counts = draw_counts(len(before), found.draws, np.random.default_rng(seed))
    both = found.resample(truth, np.stack([before, after]), counts)
    return both[:, 1] - both[:, 0]


class Bootstrap:
    """Intervals of scores (higher is better) on one split; None for what has no predictions."""

    def __init__(self, split: SplitPredictions, metric: str, *, draws: int | None = None, seed: int = 0):
        self.split, self.metric, self.seed = split, metrics.load(metric), seed
        self.draws = draws or self.metric.draws
        n = next(iter(split.values.values())).shape[-1]
        self.counts = draw_counts(n, self.draws, np.random.default_rng(seed))
        self._replicates: dict[Key, np.ndarray] = {}

    def score(self, key: Key, removed: float) -> Interval | None:
        """Return the interval of the score at one level; Wilson's where draws of a share show too little."""
        return self._wilson(key, removed) or _interval(self._at(key, removed))

    def _wilson(self, key: Key, removed: float) -> Interval | None:
        """Of few examples, and of a share of 0 or 1, which every draw repeats."""
        levels, values = self.split.removed.get(key, ()), self.split.values.get(key)
        if not self.metric.share or values is None or len(values) > 1 or removed not in levels:
            return None
        share, n = self.metric(self.split.truth, values[0, levels.index(removed)]), values.shape[-1]
        if share in (0, 1) or (self.metric.proportion and n < FEW):
            low, high = sorted(map(self.metric.score, wilson(share, n)))
            return Interval(low, high)
        return None

    def change(self, key: Key, removed: float) -> Interval | None:
        """Return the interval of the score at one level minus that of the unpruned model."""
        return _interval(self._at(key, removed), self._at(BASE_KEY, 0.0))

    def difference(self, a: Key, b: Key, removed: float) -> Interval | None:
        """Return the interval of the score of `a` minus that of `b` at one level."""
        return _interval(self._at(a, removed), self._at(b, removed))

    def area(self, key: Key) -> Interval | None:
        """Return the interval of the mean height of a curve."""
        return _interval(self._area(key))

    def area_difference(self, a: Key, b: Key, levels: Sequence[float] | None = None) -> Interval | None:
        """Return the interval of the area under `a` minus that under `b`, both over the same levels."""
        return _interval(self._area(a, levels), self._area(b, levels))

    def replicates(self, key: Key) -> np.ndarray | None:
        """Return the curve in each draw, [draws, levels]; of random methods, the mean over drawn trials."""
        if key not in self.split.values:
            return None
        if key not in self._replicates:
            values = self.split.values[key]
            trials, levels, n = values.shape
            found = self.metric.resample(self.split.truth, values.reshape(-1, n), self.counts)
            drawn = draw_counts(trials, self.draws, np.random.default_rng([self.seed, trials])) / trials
            found = np.einsum("dt,dtl->dl", drawn, found.reshape(self.draws, trials, levels))
            self._replicates[key] = found
        return self._replicates[key]

    def _at(self, key: Key, removed: float) -> np.ndarray | None:
        found = self.replicates(key)
        if found is None or removed not in self.split.removed[key]:
            return None
        return found[:, self.split.removed[key].index(removed)]

    def _area(self, key: Key, levels: Sequence[float] | None = None) -> np.ndarray | None:
        found = self.replicates(key)
        if found is None:
            return None
        known = self.split.removed[key]
        levels = known if levels is None else levels
        return found[:, [known.index(x) for x in levels]] @ np.array(area_weights(levels))


def _interval(draws: np.ndarray | None, *less: np.ndarray | None) -> Interval | None:
    if draws is None or any(one is None for one in less):
        return None
    # a draw of equal labels may leave a metric undefined
    low, high = np.nanquantile(draws - less[0] if less else draws, QUANTILES)
    return Interval(float(low), float(high))


def wilson(share: float, n: int) -> Interval:
    """Return Wilson's interval of a share of n examples. It has a width even if the share is 0 or 1."""
    squared = NORMAL**2 / n
    middle = (share + squared / 2) / (1 + squared)
    half = NORMAL / (1 + squared) * np.sqrt(share * (1 - share) / n + squared / (4 * n))
    return Interval(max(0.0, float(middle - half)), min(1.0, float(middle + half)))


def draw_counts(n: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Return how often each of n is drawn when n are drawn with replacement, [draws, n]."""
    drawn = rng.integers(n, size=(draws, n)) + n * np.arange(draws)[:, None]
    return np.bincount(drawn.ravel(), minlength=n * draws).reshape(draws, n).astype(np.float32)
