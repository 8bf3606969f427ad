"""Pearson correlation of predicted and true values; 0 for constant predictions, undefined for such truths."""

from __future__ import annotations

import numpy as np

from . import metric
from ._draws import correlate, shares


def _resample(truth: np.ndarray, predictions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    share = shares(counts)
    x, y = truth - truth.mean(), (predictions - predictions.mean(1, keepdims=True)).T  # [n], [n, levels]
    mean_x, mean_y = (share @ x)[:, None], share @ y
    variance_x, variance_y = (share @ x**2)[:, None] - mean_x**2, share @ y**2 - mean_y**2
    return correlate((share * x) @ y - mean_x * mean_y, variance_x, variance_y)


@metric("regression", label="Pearson correlation", resample=_resample)
def pearson(truth: np.ndarray, predictions: np.ndarray) -> float:
    from scipy.stats import pearsonr

    if not np.ptp(truth):
        return np.nan
    return pearsonr(truth, predictions).statistic if np.ptp(predictions) else 0.0  # type: ignore[attr-defined]
