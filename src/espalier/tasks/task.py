"""A task: labelled texts in three splits that share none, and how the splits are made."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

from ..core.errors import DataError

KINDS = ("classification", "regression", "similarity", "language")
SIMILARITY = "similarity"
UNLABELLED = "unlabelled"  # texts for a classifier, whose own predictions are then the truth
SCALES = ("regression", "similarity")  # whose labels are values: of a text or a pair, and of two embeddings
SPLITS = ("train", "validation", "test")
NAMES = {  # how the name of a split begins in files and on the hub
    "train": ("train",),
    "validation": ("valid", "val", "dev"),
    "test": ("test", "heldout", "eval"),
}
SHARES = (0.7, 0.15, 0.15)  # of data that has no splits


@dataclass(frozen=True)
class Examples:
    """Texts, each perhaps with a second text (a pair) and a label."""

    texts: Sequence[str]  # a tuple, or the lines of a file
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
        wanted = set(positions)
        texts = {i: text for i, text in enumerate(self.texts) if i in wanted}  # one pass, over a file too
        return Examples(
            tuple(texts[i] for i in positions),
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
        pairs = repeat(None) if self.pairs is None else self.pairs
        for text, pair, label in zip(self.texts, pairs, self.labels or repeat(0)):
            digest.update(repr((text, text if pair is None else pair, label)).encode())
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

    @property
    def labelled(self) -> bool:
        """Whether there is anything to measure by."""
        return self.kind == "language" or not (self.validation.labels is None and self.test.labels is None)

    def draw_train(self, n: int | None, seed: int) -> Examples:
        """Return `n` training examples drawn by a seed; of running text its first lines, without gaps."""
        if self.kind == "language" and n is not None:
            return Examples(self.train.texts[:n])
        return self.train.sample(n, seed)

    def sized(self, *, validation: int | None, test: int | None, seed: int) -> Task:
        """Return the task with smaller splits, drawn by a seed. Running text is limited by its blocks."""
        if self.kind == "language":
            return self
        return replace(
            self, validation=self.validation.sample(validation, seed), test=self.test.sample(test, seed)
        )


def split_of(name: str) -> str | None:
    """Return the split that a name begins with: `dev_matched` is validation; None if it names none."""
    return next((split for split, starts in NAMES.items() if name.lower().startswith(starts)), None)


def make_splits(
    given: Mapping[str, Examples], *, seed: int, where: str, running: bool = False
) -> tuple[dict[str, Examples], list[str]]:
    """Return train, validation and test, and notes on how they were made.

    A single held-out split is halved rather than completed from training data, which the model may have
    seen. `running` text is cut in its own order, and repeated lines stay.
    """
    notes: list[str] = []
    how = "in order" if running else f"by seed {seed}"
    splits = {split: given[split] for split in SPLITS if split in given and len(given[split])}
    held_out = [split for split in ("validation", "test") if split in splits]
    if not splits:
        raise DataError(f"{where} has no labelled examples")
    if len(splits) == 1:
        (whole,) = splits.values()
        splits = dict(zip(SPLITS, _divide(whole, SHARES, seed, running)))
        sizes = ", ".join(f"{len(splits[split])} {split}" for split in SPLITS)
        (name,) = (split for split in SPLITS if split in given and len(given[split]))
        what = f"{len(whole)} examples without splits"
        what = what if name == "train" else f"the only split that can be used ({name}, {len(whole)})"
        notes.append(f"{what}, split {how} into {sizes}")
    elif len(held_out) == 1:
        whole = splits[held_out[0]]
        splits["validation"], splits["test"] = _divide(whole, (0.5, 0.5), seed, running)
        notes.append(
            f"the one held-out split ({held_out[0]}, {len(whole)}) halved {how}: "
            f"{len(splits['validation'])} validation, {len(splits['test'])} test"
        )
    elif "train" not in splits:
        splits["train"], splits["validation"] = _divide(splits["validation"], (0.5, 0.5), seed, running)
        notes.append(f"no train split: half of validation ({len(splits['train'])}) is used for calibration")
    return splits if running else remove_shared(splits, notes), notes


def _divide(examples: Examples, shares: tuple[float, ...], seed: int, running: bool) -> list[Examples]:
    ends = [round(sum(shares[: i + 1]) * len(examples)) for i in range(len(shares))]
    bounds = list(zip([0, *ends], ends))
    if not all(a < b for a, b in bounds):
        raise DataError(f"{len(examples)} examples are too few for {len(shares)} splits; give more of them")
    if running:
        return [Examples(examples.texts[a:b]) for a, b in bounds]
    positions = list(range(len(examples)))
    random.Random(seed).shuffle(positions)
    return [examples.take(sorted(positions[a:b])) for a, b in bounds]


def remove_shared(splits: Mapping[str, Examples], notes: list[str]) -> dict[str, Examples]:
    """Remove test texts from validation and train, and validation texts from train; add notes on it."""
    seen: set[tuple[str, str]] = set()
    out: dict[str, Examples] = {}
    for split in reversed(SPLITS):
        keys = list(splits[split].keys())
        own = [i for i, key in enumerate(keys) if key not in seen]
        if not own:
            raise DataError(f"every {split} example is also in a later split: none is left")
        if len(own) < len(keys):
            notes.append(f"{len(keys) - len(own)} {split} examples left out: a later split has the same text")
        out[split] = splits[split].take(own)
        seen |= set(keys)
    return {split: out[split] for split in SPLITS}
