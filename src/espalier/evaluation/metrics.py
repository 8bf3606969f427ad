"""What answers are worth: one number from predictions and truths, by scikit-learn and scipy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from ..core.errors import EspalierError

Numbers = Sequence[float] | np.ndarray


def _of(library: str, name: str) -> Callable[..., Any]:
    try:
        return getattr(import_module(library), name)
    except ImportError:
        raise EspalierError(
            f"measuring needs {library.partition('.')[0]}. Type: pip install 'espalier[tasks]'"
        ) from None


def accuracy(truth: Numbers, guess: Numbers) -> float:
    accuracy_score = _of("sklearn.metrics", "accuracy_score")

    return float(accuracy_score(truth, guess))


def f1(truth: Numbers, guess: Numbers) -> float:
    f1_score = _of("sklearn.metrics", "f1_score")

    two = set(np.unique(truth)) | set(np.unique(guess)) <= {0, 1}
    return float(f1_score(truth, guess, average="binary" if two else "macro", zero_division=0))


def matthews(truth: Numbers, guess: Numbers) -> float:
    matthews_corrcoef = _of("sklearn.metrics", "matthews_corrcoef")

    return float(matthews_corrcoef(truth, guess))


def spearman(truth: Numbers, guess: Numbers) -> float:
    spearmanr = _of("scipy.stats", "spearmanr")

    # A model that answers the same to everything says nothing: no correlation, not an undefined one.
    return float(spearmanr(truth, guess).statistic) if np.ptp(guess) else 0.0


def pearson(truth: Numbers, guess: Numbers) -> float:
    pearsonr = _of("scipy.stats", "pearsonr")

    return float(pearsonr(truth, guess).statistic) if np.ptp(guess) else 0.0


def guessing(truth: Numbers | None, reached: float | None) -> str:
    """A word where an accuracy is not above that of always answering the most frequent class, else none."""
    if truth is None or reached is None or not len(truth):
        return ""
    most = float(np.unique(truth, return_counts=True)[1].max() / len(truth))
    if reached > most:
        return ""
    return (
        f"the unpruned model answers {100 * reached:.1f} % of the validation examples right, no more than "
        f"the most frequent class alone would ({100 * most:.1f} %). Was it trained for this task, and are "
        "the classes numbered alike?"
    )


METRICS: dict[str, Callable[[Numbers, Numbers], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}
OF_KIND = {
    "classification": ("accuracy", "f1", "matthews"),
    "regression": ("spearman", "pearson"),
    "language": (),
}
