"""A task: labelled texts in three splits that share none."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

KINDS = ("classification", "regression", "language")
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Examples:
    """Texts, each perhaps with a second text (a pair) and a label."""

    texts: tuple[str, ...]
    pairs: tuple[str, ...] | None = None
    labels: tuple[float, ...] | None = None  # the number of a class, or a score

    def __len__(self) -> int:
        return len(self.texts)

    def keys(self) -> Iterator[tuple[str, str]]:
        """Yield what identifies each example, whatever its label."""
        return zip(self.texts, self.pairs or ("",) * len(self.texts))

    def take(self, positions: Iterable[int]) -> Examples:
        """Return the examples at these positions, in this order."""
        positions = list(positions)
        return Examples(
            tuple(self.texts[i] for i in positions),
            None if self.pairs is None else tuple(self.pairs[i] for i in positions),
            None if self.labels is None else tuple(self.labels[i] for i in positions),
        )

    def sample(self, n: int | None, seed: int) -> Examples:
        """Return `n` examples drawn by a seed, in their own order; all if there are fewer, or n is None."""
        if n is None or n >= len(self):
            return self
        return self.take(sorted(random.Random(seed).sample(range(len(self)), n)))

    def fingerprint(self) -> str:
        """Return a digest of texts and labels in their order, equal on every machine."""
        digest = hashlib.sha256()
        for row in zip(self.texts, self.pairs or self.texts, self.labels or (0,) * len(self)):
            digest.update(repr(row).encode())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Task:
    """Data and metric. Training and calibration read `train`, choices `validation`, reports `test`."""

    name: str
    train: Examples
    validation: Examples
    test: Examples
    kind: str = "classification"
    classes: tuple[str, ...] = ()
    metric: str = "accuracy"
    notes: tuple[str, ...] = ()  # how the splits were made

    def sized(self, *, validation: int | None, test: int | None, seed: int) -> Task:
        """Return the task with smaller splits, drawn by a seed. Running text is limited by its blocks."""
        if self.kind == "language":
            return self
        return replace(
            self, validation=self.validation.sample(validation, seed), test=self.test.sample(test, seed)
        )
