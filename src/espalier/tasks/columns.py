"""Which columns of a table are the text, its pair and the answer: as told, or recognised by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import EspalierError, suggest

PAIRS = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question", "context"),
    ("text1", "text2"),
    ("query", "passage"),
)
TEXTS = ("sentence", "text", "review", "content", "tweet", "description", "title", "question")
LABELS = ("label", "labels", "class", "target", "sentiment", "category", "gold_label", "score", "y")


@dataclass(frozen=True)
class Columns:
    text: str
    pair: str | None
    label: str | None


def recognise(
    table: Mapping[str, Sequence[Any]],
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    where: str = "the table",
) -> Columns:
    """The columns, by name: those given must exist, the others are looked for."""
    names = list(table)
    for given in filter(None, (text, pair, label)):
        if given not in names:
            raise EspalierError(
                f"{where} has no column {given!r}{suggest(given, names)} It has: {', '.join(names)}"
            )
    lower = {name.lower(): name for name in names}
    if text is None and pair is None:
        text, pair = next(((lower[a], lower[b]) for a, b in PAIRS if a in lower and b in lower), (None, None))
    wordy = [n for n in names if n not in (pair, label) and _is_text(table[n])]
    if text is None:
        text = next((lower[name] for name in TEXTS if lower.get(name) in wordy), None)
    if text is None and len(wordy) == 1:
        text = wordy[0]
    if text is None:
        raise EspalierError(
            f"cannot tell which column of {where} is the text. It has: {', '.join(names)}. "
            "Type --text COLUMN (and --pair, --label)"
        )
    if label is None:
        label = next((lower[n] for n in LABELS if n in lower and lower[n] not in (text, pair)), None)
    return Columns(text, pair, label)


def _is_text(values: Sequence[Any]) -> bool:
    return any(isinstance(value, str) and value for value in values[:50])
