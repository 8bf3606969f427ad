"""The nouns of a task: examples, and the three parts of them that never mix."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

KINDS = ("classification", "regression", "language")


@dataclass(frozen=True)
class Examples:
    """Texts, perhaps a second text for each (a pair), perhaps an answer for each."""

    texts: tuple[str, ...]
    pairs: tuple[str, ...] | None = None
    labels: tuple[float, ...] | None = None  # the number of a class, or a score

    def __len__(self) -> int:
        return len(self.texts)

    def keys(self) -> Iterator[tuple[str, str]]:
        """What makes two examples the same one, whatever their answers."""
        return zip(self.texts, self.pairs or ("",) * len(self.texts))

    def take(self, places: Iterable[int]) -> Examples:
        places = list(places)
        return Examples(
            tuple(self.texts[i] for i in places),
            None if self.pairs is None else tuple(self.pairs[i] for i in places),
            None if self.labels is None else tuple(self.labels[i] for i in places),
        )

    def sample(self, n: int | None, seed: int) -> Examples:
        """`n` of them by a seeded draw, in their own order; all if there are no more, or n is None."""
        if n is None or n >= len(self):
            return self
        return self.take(sorted(random.Random(seed).sample(range(len(self)), n)))

    def fingerprint(self) -> str:
        """The same for the same texts and answers in the same order, on every machine."""
        digest = hashlib.sha256()
        for row in zip(self.texts, self.pairs or self.texts, self.labels or (0,) * len(self)):
            digest.update(repr(row).encode())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Task:
    """What a model is asked. Training and calibration read `train`, choices `validation`, claims `test`."""

    name: str
    train: Examples
    validation: Examples
    test: Examples
    kind: str = "classification"
    classes: tuple[str, ...] = ()
    metric: str = "accuracy"
    notes: tuple[str, ...] = ()  # how the parts were made: said to the user, kept with the run

    def sized(self, *, validation: int | None, test: int | None, seed: int) -> Task:
        """The same task with smaller parts, drawn by a seed; running text is cut by whoever makes blocks."""
        if self.kind == "language":
            return self
        return replace(
            self,
            validation=self.validation.sample(validation, seed),
            test=self.test.sample(test, seed),
        )
