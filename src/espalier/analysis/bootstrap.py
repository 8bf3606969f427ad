"""How sure a number is: examples are drawn again, the same for every strategy, so differences are paired."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .results import Answers, Results

DRAWS = 1000
FEWER = 200  # where the answers must be ranked anew in every draw
COVERS = (0.025, 0.975)
ALIKE = 1e-15  # a variance that is only rounding


class Interval(NamedTuple):
    """The middle 95 % of what the draws gave."""

    low: float
    high: float


def bootstraps(results: Results, seed: int = 0) -> dict[str, Bootstrap]:
    """One for each part of the data whose answers were kept; none for files that hold no answers."""
    return {
        part: Bootstrap(answers, results.metric, seed=seed)
        for part, answers in results.answers.items()
        if results.metric in METRICS and (answers.truth is not None) == (results.metric in LABELLED)
    }


class Bootstrap:
    """Intervals of one experiment on one part of the data. A label without answers has none: None."""

    def __init__(self, answers: Answers, metric: str, *, draws: int | None = None, seed: int = 0):
        self.answers, self.metric, self.seed = answers, metric, seed
        self.draws = draws or (FEWER if metric == "spearman" else DRAWS)
        n = next(iter(answers.guesses.values())).shape[-1] if answers.guesses else 0
        self._counts = counts(n, self.draws, np.random.default_rng(seed)) if n else None
        self._kept: dict[str, np.ndarray] = {}

    def at(self, label: str, removed: int) -> Interval | None:
        """Of the metric at one level."""
        found = self._at(label, removed)
        return None if found is None else interval(found)

    def change(self, label: str, removed: int) -> Interval | None:
        """Of the metric at one level, less that of the unpruned model."""
        return self.difference_at(label, label, removed, 0)

    def difference_at(self, a: str, b: str, removed: int, other: int | None = None) -> Interval | None:
        """Of `a` less `b` at one level (or `b` at another)."""
        one, two = self._at(a, removed), self._at(b, removed if other is None else other)
        return None if one is None or two is None else interval(one - two)

    def area(self, label: str) -> Interval | None:
        """Of the mean height of the curve."""
        found = self._area(label)
        return None if found is None else interval(found)

    def difference(self, a: str, b: str, grid: tuple[int, ...] | None = None) -> Interval | None:
        """Of the area under `a` less that under `b`, both over the levels of `grid`."""
        one, two = self._area(a, grid), self._area(b, grid)
        return None if one is None or two is None else interval(one - two)

    def replicates(self, label: str) -> np.ndarray | None:
        """The curve as each draw sees it, [draws, levels]; of random removal, the mean over drawn trials."""
        if label not in self.answers.guesses or self._counts is None:
            return None
        if label not in self._kept:
            guesses = self.answers.guesses[label]
            flat = guesses.reshape(-1, guesses.shape[-1])
            found = METRICS[self.metric](self.answers.truth, flat, self._counts)
            if guesses.ndim == 3:
                trials, levels, _ = guesses.shape
                again = counts(trials, self.draws, np.random.default_rng([self.seed, trials]))
                each = found.reshape(self.draws, trials, levels)
                found = np.einsum("dt,dtl->dl", again / trials, each)
            self._kept[label] = found
        return self._kept[label]

    def _at(self, label: str, removed: int) -> np.ndarray | None:
        found = self.replicates(label)
        if found is None or removed not in self.answers.levels[label]:
            return None
        return found[:, self.answers.levels[label].index(removed)]

    def _area(self, label: str, grid: tuple[int, ...] | None = None) -> np.ndarray | None:
        found = self.replicates(label)
        if found is None:
            return None
        levels = self.answers.levels[label]
        grid = grid or levels
        return found[:, [levels.index(k) for k in grid]] @ weights(grid)


def interval(draws: np.ndarray) -> Interval:
    low, high = np.quantile(draws, COVERS)
    return Interval(float(low), float(high))


def counts(n: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """How often each of n is drawn when n are drawn with replacement, [draws, n]."""
    drawn = rng.integers(n, size=(draws, n)) + n * np.arange(draws)[:, None]
    return np.bincount(drawn.ravel(), minlength=n * draws).reshape(draws, n).astype(np.float32)


def weights(levels: tuple[int, ...]) -> np.ndarray:
    """What each level counts for in the area: straight lines between levels, as in Curve.area."""
    out = np.zeros(len(levels))
    if len(levels) == 1:
        return out + 1.0
    for i, (first, last) in enumerate(pairwise(levels)):
        out[i : i + 2] += (last - first) / 2
    return out / levels[-1]


# ---------------- metrics of [levels, n] answers under [draws, n] counts: [draws, levels]


def _accuracy(truth: np.ndarray, guesses: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    right = (guesses == truth).astype(np.float32)
    return (drawn @ right.T).astype(np.float64) / drawn.sum(1, keepdims=True)


def _f1(truth: np.ndarray, guesses: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """As metrics.f1: of class 1 if there are only 0 and 1, otherwise the mean over classes that occur."""
    classes = np.array([1]) if set(_classes(truth, guesses)) <= {0, 1} else _classes(truth, guesses)
    total = np.zeros((len(drawn), len(guesses)))
    seen = np.zeros_like(total)
    for one in classes:
        hit, guessed, real = _of_class(one, truth, guesses, drawn)
        both = guessed + real
        total += np.divide(2 * hit, both, out=np.zeros_like(hit), where=both > 0)
        seen += both > 0
    return total / np.maximum(seen, 1)


def _matthews(truth: np.ndarray, guesses: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    n = drawn.sum(1, keepdims=True).astype(np.float64)
    right = np.zeros((len(drawn), len(guesses)))
    cross, square, own = np.zeros_like(right), np.zeros_like(right), np.zeros((len(drawn), 1))
    for one in _classes(truth, guesses):
        hit, guessed, real = _of_class(one, truth, guesses, drawn)
        right += hit
        cross += guessed * real
        square += guessed**2
        own += real**2
    below = np.sqrt((n**2 - square) * (n**2 - own))
    return np.divide(right * n - cross, below, out=np.zeros_like(right), where=below > 0)


def _of_class(
    one: float, truth: np.ndarray, guesses: np.ndarray, drawn: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How often the class was hit and guessed, [draws, levels], and how often it was there, [draws, 1]."""
    is_one, guessed = truth == one, guesses == one
    hit = drawn @ (guessed & is_one).T.astype(np.float32)
    often = drawn @ guessed.T.astype(np.float32)
    real = drawn @ is_one[:, None].astype(np.float32)
    return hit.astype(np.float64), often.astype(np.float64), real.astype(np.float64)


def _classes(truth: np.ndarray, guesses: np.ndarray) -> np.ndarray:
    return np.union1d(truth, guesses)


def _pearson(truth: np.ndarray, guesses: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    share = _shares(drawn)
    x, y = truth - truth.mean(), (guesses - guesses.mean(1, keepdims=True)).T  # [n], [n, levels]
    mean_x, mean_y = (share @ x)[:, None], share @ y
    spread_x, spread_y = (share @ x**2)[:, None] - mean_x**2, share @ y**2 - mean_y**2
    return _correlation((share * x) @ y - mean_x * mean_y, spread_x, spread_y)


def _spearman(truth: np.ndarray, guesses: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    share, x = _shares(drawn), _ranks(truth, drawn)
    spread, along = (share * x * x).sum(1), share * x
    out = np.empty((len(drawn), len(guesses)))
    for i, guess in enumerate(guesses):
        y = _ranks(guess, drawn)
        spread_y = np.einsum("dn,dn,dn->d", share, y, y)
        out[:, i] = _correlation(np.einsum("dn,dn->d", along, y), spread, spread_y)
    return out


def _ranks(values: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The rank of every example among those drawn, equal values sharing theirs, from −½ to ½: [draws, n]."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    size = np.add.reduceat(drawn[:, order], starts, axis=1).astype(np.float64)
    return ((np.cumsum(size, axis=1) - size / 2) / len(values) - 0.5)[:, group]


def _correlation(along: np.ndarray, spread_x: np.ndarray, spread_y: np.ndarray) -> np.ndarray:
    # answers that are all alike say nothing: no correlation, as in metrics.py
    alike = (spread_x <= ALIKE) | (spread_y <= ALIKE)
    below = np.sqrt(np.where(alike, 1.0, spread_x * spread_y))
    return np.where(alike, 0.0, along / below)


def _shares(drawn: np.ndarray) -> np.ndarray:
    return drawn / drawn.sum(1, keepdims=True, dtype=np.float64)


def _language(truth: np.ndarray | None, losses: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    return -(_shares(drawn) @ losses.T)


METRICS: dict[str, Callable[..., np.ndarray]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
    "perplexity": _language,
}
LABELLED = set(METRICS) - {"perplexity"}
