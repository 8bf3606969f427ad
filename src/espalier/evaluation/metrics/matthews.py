"""Matthews correlation of predicted and true classes: 1 for all correct, 0 for chance or a constant.

It is undefined if all true classes are equal.
"""

from __future__ import annotations

import numpy as np

from . import metric
from ._draws import count_class


def _resample(truth: np.ndarray, predictions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    n = counts.sum(1, keepdims=True).astype(np.float64)
    correct = np.zeros((len(counts), len(predictions)))
    cross, predicted_squares = np.zeros_like(correct), np.zeros_like(correct)
    true_squares = np.zeros((len(counts), 1))
    for label in np.union1d(truth, predictions):
        hits, predicted, examples = count_class(label, truth, predictions, counts)
        correct += hits
        cross += predicted * examples
        predicted_squares += predicted**2
        true_squares += examples**2
    below = np.sqrt((n**2 - predicted_squares) * (n**2 - true_squares))
    return np.divide(correct * n - cross, below, out=np.zeros_like(correct), where=below > 0)


@metric("classification", label="Matthews correlation", resample=_resample)
def matthews(truth: np.ndarray, predictions: np.ndarray) -> float:
    if len(np.unique(truth)) < 2:
        return np.nan
    from sklearn.metrics import matthews_corrcoef

    return matthews_corrcoef(truth, predictions)
