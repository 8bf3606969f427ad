"""Perplexity: exp of the mean loss per token, which is what a language task has as predictions."""

from __future__ import annotations

import numpy as np

from . import metric
from ._draws import shares

LARGEST_EXPONENT = 700.0  # exp of more overflows


def _resample(truth: np.ndarray | None, losses: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return -(shares(counts) @ losses.T)


@metric("language", lower_is_better=True, log=True, needs_truth=False, resample=_resample)
def perplexity(truth: np.ndarray | None, losses: np.ndarray) -> float:
    return float(np.exp(min(float(losses.mean()), LARGEST_EXPONENT)))
