"""Which columns of a table are the text, its pair and the label: as given, or recognised by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..core.errors import DataError, UnknownNameError

Table = Mapping[str, Sequence[object]]
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


class Columns(NamedTuple):
    """Names of columns; None where the table has none."""

    text: str
    pair: str | None = None
    label: str | None = None


def recognise(
    table: Table,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    where: str = "the table",
) -> Columns:
    """Return the columns of a table: those given must exist, the others are recognised by name."""
    names = list(table)
    for parameter, given in (("text", text), ("pair", pair), ("label", label)):
        if given and given not in names:
            raise UnknownNameError(f"column of {where}", given, names, parameter)
    lower = {name.lower(): name for name in names}
    if text is None and pair is None:
        text, pair = next(((lower[a], lower[b]) for a, b in PAIRS if a in lower and b in lower), (None, None))
    if text is None:
        texts = [n for n in names if n not in (pair, label) and _is_text(table[n])]
        text = next((lower[name] for name in TEXTS if lower.get(name) in texts), None)
        text = texts[0] if text is None and len(texts) == 1 else text
    if text is None:
        raise DataError(
            f"cannot recognise which column of {where} is the text. It has: {', '.join(names)}. "
            "Give `text` (and `pair`, `label`)"
        )
    if label is None:
        label = next((lower[n] for n in LABELS if n in lower and lower[n] not in (text, pair)), None)
    return Columns(text, pair, label)


def _is_text(values: Sequence[object]) -> bool:
    return any(isinstance(value, str) and value for value in values[:50])
