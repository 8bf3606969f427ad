"""F1: the harmonic mean of precision and recall, of class 1 if there are two, else the macro mean."""

from __future__ import annotations

import numpy as np

from . import metric
from ._draws import count_class


def _resample(truth: np.ndarray, predictions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    classes = np.union1d(truth, predictions)
    total = np.zeros((len(counts), len(predictions)))
    occurring = np.zeros_like(total)
    for label in [1] if set(classes) <= {0, 1} else classes:
        correct, predicted, examples = count_class(label, truth, predictions, counts)
        both = predicted + examples
        total += np.divide(2 * correct, both, out=np.zeros_like(correct), where=both > 0)
        occurring += both > 0
    return total / np.maximum(occurring, 1)


@metric("classification", label="F1", share=True, resample=_resample)
def f1(truth: np.ndarray, predictions: np.ndarray) -> float:
    from sklearn.metrics import f1_score

    binary = set(np.union1d(truth, predictions)) <= {0, 1}
    return f1_score(truth, predictions, average="binary" if binary else "macro", zero_division=0)
