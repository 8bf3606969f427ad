"""Spearman correlation: Pearson's of the ranks; 0 for constant predictions, undefined for such truths."""

from __future__ import annotations

import numpy as np

from . import metric
from ._draws import correlate, shares


def _resample(truth: np.ndarray, predictions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    share, x = shares(counts), _ranks(truth, counts)
    weighted = share * x
    variance_x = (weighted * x).sum(1)
    out = np.empty((len(counts), len(predictions)))
    for level, values in enumerate(predictions):
        y = _ranks(values, counts)
        variance_y = np.einsum("dn,dn,dn->d", share, y, y)
        out[:, level] = correlate(np.einsum("dn,dn->d", weighted, y), variance_x, variance_y)
    return out


def _ranks(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Rank each example among those drawn, ties sharing their mean rank, scaled to −½ … ½: [draws, n]."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    size = np.add.reduceat(counts[:, order], starts, axis=1).astype(np.float64)
    return ((np.cumsum(size, axis=1) - size / 2) / len(values) - 0.5)[:, group]


@metric("regression", label="Spearman correlation", draws=200, resample=_resample)
def spearman(truth: np.ndarray, predictions: np.ndarray) -> float:
    from scipy.stats import spearmanr

    if not np.ptp(truth):
        return np.nan
    return spearmanr(truth, predictions).statistic if np.ptp(predictions) else 0.0  # type: ignore[attr-defined]
