"""Quantities under the draws of a bootstrap that several metrics are made of."""

from __future__ import annotations

import numpy as np

CONSTANT = 1e-15  # a variance that is only rounding


def shares(counts: np.ndarray) -> np.ndarray:
    """Return the weight of each example in each draw, in float64; the weights of a draw add up to 1."""
    return counts / counts.sum(1, keepdims=True, dtype=np.float64)


def count_class(
    label: float, truth: np.ndarray, predictions: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count true positives and predictions of a class, [draws, levels], and its examples, [draws, 1]."""
    is_label, predicted = truth == label, predictions == label
    correct = counts @ (predicted & is_label).T.astype(np.float32)
    how_often = counts @ predicted.T.astype(np.float32)
    examples = counts @ is_label[:, None].astype(np.float32)
    return correct.astype(np.float64), how_often.astype(np.float64), examples.astype(np.float64)


def correlate(covariance: np.ndarray, variance_x: np.ndarray, variance_y: np.ndarray) -> np.ndarray:
    """Return the correlation, and 0 where one side is constant."""
    constant = (variance_x <= CONSTANT) | (variance_y <= CONSTANT)
    below = np.sqrt(np.where(constant, 1.0, variance_x * variance_y))
    return np.where(constant, 0.0, covariance / below)
