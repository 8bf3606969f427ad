"""Three parts that share no example: as named, or made by a seeded draw where one is missing."""

from __future__ import annotations

import random
from collections.abc import Mapping

from ..core.errors import EspalierError
from .task import Examples

PARTS = ("train", "validation", "test")
NAMES = {  # how a part's name begins in files and on the hub
    "train": ("train",),
    "validation": ("valid", "val", "dev"),
    "test": ("test", "heldout", "eval"),
}
SHARES = (0.7, 0.15, 0.15)  # of a table that is one piece


def part_of(name: str) -> str | None:
    """`dev_matched` -> validation; None if the name speaks of no part."""
    lower = name.lower()
    return next((p for p, starts in NAMES.items() if lower.startswith(starts)), None)


def three_parts(
    given: Mapping[str, Examples], *, seed: int, where: str, running: bool = False
) -> tuple[dict[str, Examples], list[str]]:
    """Train, validation and test, and sentences about what had to be done to get them.

    A single held-out part is halved rather than replaced by training data: the model may have seen that.
    `running` text is cut where it stands, and its repeated lines stay.
    """
    notes: list[str] = []
    how = "where it stands" if running else f"by seed {seed}"
    parts = {part: given[part] for part in PARTS if part in given and len(given[part])}
    held_out = [part for part in ("validation", "test") if part in parts]
    if not parts:
        raise EspalierError(f"{where} has no labelled examples")
    if len(parts) == 1:
        (whole,) = parts.values()
        parts = dict(zip(PARTS, _drawn(whole, SHARES, seed, running)))
        notes.append(
            f"one piece of {len(whole)} examples, split {how} into "
            + ", ".join(f"{len(parts[p])} {p}" for p in PARTS)
        )
    elif len(held_out) == 1:
        (name,) = held_out
        whole = parts[name]
        parts["validation"], parts["test"] = _drawn(whole, (0.5, 0.5), seed, running)
        notes.append(
            f"the one held-out part ({name}, {len(whole)}) halved {how}: "
            f"{len(parts['validation'])} to choose by, {len(parts['test'])} to report on"
        )
    elif "train" not in parts:
        whole = parts["validation"]
        parts["train"], parts["validation"] = _drawn(whole, (0.5, 0.5), seed, running)
        notes.append(f"no training part: half of validation ({len(parts['train'])}) is used for calibration")
    return parts if running else disjoint(parts, notes), notes


def _drawn(examples: Examples, shares: tuple[float, ...], seed: int, running: bool) -> list[Examples]:
    places = list(range(len(examples)))
    if not running:
        random.Random(seed).shuffle(places)
    ends = [round(sum(shares[: i + 1]) * len(places)) for i in range(len(shares))]
    made = [examples.take(sorted(places[a:b])) for a, b in zip([0, *ends], ends)]
    if not all(map(len, made)):
        raise EspalierError(f"{len(examples)} examples cannot make {len(shares)} parts; give more of them")
    return made


def disjoint(parts: dict[str, Examples], notes: list[str]) -> dict[str, Examples]:
    """What is in test leaves validation and train; what is in validation leaves train."""
    seen: set[tuple[str, str]] = set()
    out: dict[str, Examples] = {}
    for part in reversed(PARTS):
        own = list(parts[part].keys())
        fresh = [i for i, key in enumerate(own) if key not in seen]
        if len(fresh) < len(own):
            notes.append(
                f"{len(own) - len(fresh)} {part} examples left out: a later part holds the same text"
            )
        out[part] = parts[part].take(fresh)
        if not fresh:
            raise EspalierError(f"every {part} example is also in a later part: nothing is left")
        seen |= set(own)
    return {part: out[part] for part in PARTS}
