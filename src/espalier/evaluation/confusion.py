"""Whether predictions fit the labels better under another numbering of the classes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .metrics import import_function

MOST_CLASSES = 20  # of more, some numbering always fits by chance
CHANCE = 1e-3  # how probable a better fit may be if both numberings are equally good


def find_swaps(truth: np.ndarray, predictions: np.ndarray) -> dict[int, int]:
    """Return {class: the class predicted for it} of classes that are predicted as each other, else {}.

    The best one-to-one renumbering counts only if most examples of the classes that it moves are right under
    it, and if it is right so much more often than the given one that chance does not explain it.
    """
    truth, predictions = np.asarray(truth).astype(int), np.asarray(predictions).astype(int)
    classes = int(max(truth.max(initial=0), predictions.max(initial=0))) + 1
    if classes > MOST_CLASSES or min(truth.min(initial=0), predictions.min(initial=0)) < 0:
        return {}
    table = np.zeros((classes, classes), dtype=int)  # [class, predicted class]
    np.add.at(table, (truth, predictions), 1)
    # among equals the given numbering: a class without examples is not moved
    match: Any = import_function("scipy.optimize", "linear_sum_assignment")
    moved = {int(a): int(b) for a, b in zip(*match(-table - 0.5 * np.eye(classes))) if a != b}
    wins = sum(int(table[a, b]) for a, b in moved.items())
    losses = sum(int(table[a, a]) for a in moved)
    examples = sum(int(table[a].sum()) for a in moved)
    decided = wins + losses
    chance = sum(math.comb(decided, i) for i in range(losses + 1)) / 2**decided
    return moved if 2 * wins > examples and chance < CHANCE else {}
