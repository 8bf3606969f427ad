"""What answers are worth: one number from predictions and truths, by scikit-learn and scipy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .errors import EspalierError, suggest

Numbers = Sequence[float] | np.ndarray


def accuracy(truth: Numbers, guess: Numbers) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(truth, guess))


def f1(truth: Numbers, guess: Numbers) -> float:
    from sklearn.metrics import f1_score

    two = set(np.unique(truth)) <= {0, 1}
    return float(f1_score(truth, guess, average="binary" if two else "macro", zero_division=0))


def matthews(truth: Numbers, guess: Numbers) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(truth, guess))


def spearman(truth: Numbers, guess: Numbers) -> float:
    from scipy.stats import spearmanr

    # A model that answers the same to everything says nothing: no correlation, not an undefined one.
    return float(spearmanr(truth, guess).statistic) if np.ptp(guess) else 0.0


def pearson(truth: Numbers, guess: Numbers) -> float:
    from scipy.stats import pearsonr

    return float(pearsonr(truth, guess).statistic) if np.ptp(guess) else 0.0


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


def metric(name: str) -> Callable[[Numbers, Numbers], float]:
    if name not in METRICS:
        raise EspalierError(
            f"no metric {name!r}{suggest(name, METRICS)} There are: {', '.join(METRICS)}"
        )
    return METRICS[name]
