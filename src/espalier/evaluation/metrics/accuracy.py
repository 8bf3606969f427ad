"""Accuracy: the fraction of examples whose class is predicted."""

from __future__ import annotations

import numpy as np

from . import metric


def _resample(truth: np.ndarray, predictions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    right = (predictions == truth).astype(np.float32)
    return (counts @ right.T).astype(np.float64) / counts.sum(1, keepdims=True)


@metric("classification", share=True, proportion=True, resample=_resample)
def accuracy(truth: np.ndarray, predictions: np.ndarray) -> float:
    return float(np.mean(np.asarray(truth) == np.asarray(predictions)))
