"""From tables (columns of values) to a task: columns recognised by name, classes numbered, splits made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..core.errors import DataError, UnknownNameError
from .task import Examples, Task, make_splits

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
MOST_CLASSES = 1000  # whole numbers beyond this are a scale, not classes
FEW = 20  # so many different whole numbers, some of them negative, are still classes
Label = str | int | float


class Columns(NamedTuple):
    """Names of columns; None where the table has none."""

    text: str
    pair: str | None = None
    label: str | None = None


def recognise(
    table: Table, where: str, *, text: str | None = None, pair: str | None = None, label: str | None = None
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


def from_tables(
    name: str,
    tables: Mapping[str, Table],
    *,
    classes: Sequence[str] | None = None,
    metric: str | None = None,
    seed: int = 0,
    **given: str | None,
) -> Task:
    """Return a task of the splits in `tables`; a note names the splits and rows that have no labels.

    `given` may name the columns `text`, `pair` and `label`.
    """
    columns = {split: recognise(table, f"{name} ({split})", **given) for split, table in tables.items()}
    if all(found.label is None for found in columns.values()):
        widest = max(tables.values(), key=len)
        if len(widest) > 1:
            raise DataError(
                f"cannot recognise which column of {name} holds the labels. It has: {', '.join(widest)}. "
                "Give `label`; for perplexity of running text, give a table of one column"
            )
        examples = {split: Examples(_strings(tables[split][columns[split].text])) for split in tables}
        splits, made = make_splits(examples, seed=seed, where=name, running=True)
        return Task(name, **splits, kind="language", classes=(), metric="perplexity", notes=tuple(made))
    notes: list[str] = []
    rows: dict[str, list[int]] = {}
    labels: dict[str, list[Any]] = {}
    for split, table in tables.items():
        values = [_number(value) for value in table.get(columns[split].label or "", ())]
        rows[split] = _labelled(table, columns[split], values, classes is not None)
        if not rows[split]:
            notes.append(f"{split} has no labels and is left out")
        elif len(rows[split]) < len(values):
            notes.append(f"{len(values) - len(rows[split])} {split} rows without a label left out")
        labels[split] = [values[i] for i in rows[split]]
    kind, names = _kind({value for found in labels.values() for value in found}, classes)
    examples = {
        split: take_examples(table, columns[split], rows[split], _numbered(labels[split], names))
        for split, table in tables.items()
        if rows[split]
    }
    splits, made = make_splits(examples, seed=seed, where=name)
    usual = "accuracy" if kind == "classification" else "spearman"
    return Task(name, **splits, kind=kind, classes=names, metric=metric or usual, notes=(*notes, *made))


def take_examples(
    table: Table, columns: Columns, rows: Sequence[int], labels: tuple[float, ...] | None
) -> Examples:
    """Return the examples in these rows of a table."""
    pairs = None if columns.pair is None else _strings(table[columns.pair][i] for i in rows)
    return Examples(_strings(table[columns.text][i] for i in rows), pairs, labels)


def _strings(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(map(str, values))


def _labelled(table: Table, columns: Columns, labels: Sequence[Label | None], named: bool) -> list[int]:
    """Return the rows with a text and a label. −1 is none where classes have names or all labels are −1."""
    missing: tuple[object, ...] = (None, "", "-")
    if named or all(value == -1 for value in labels):
        missing = (*missing, -1)
    texts = [table[column] for column in (columns.text, columns.pair) if column]
    return [
        i
        for i, value in enumerate(labels)
        if value not in missing and not any(text[i] is None or text[i] != text[i] for text in texts)
    ]


def _number(value: object) -> Label | None:
    """Return the number in a string, if it is one, since files have no types; None for NaN."""
    if value is None or value != value:
        return None
    if not isinstance(value, str | int | float):
        raise DataError(f"a label is a number or a word, not {value!r}. Give `label` for another column")
    try:
        number = float(value)
    except ValueError:
        return value
    if number != number:
        return None
    return int(number) if number.is_integer() else number


def _kind(labels: set[Label], classes: Sequence[str] | None) -> tuple[str, tuple[str, ...]]:
    """Return the kind of task and the names of its classes. Whole numbers from 0 are numbers of classes."""
    if not labels:
        raise DataError("no split has labels. Give `label`, or text alone to measure perplexity")
    numbers = {value for value in labels if not isinstance(value, str)}
    if any(isinstance(value, float) for value in numbers):
        if len(numbers) < len(labels):
            raise DataError("some labels are words and some are fractions")
        return "regression", ()
    if len(numbers) < len(labels):
        words = sorted(map(str, labels))
        return "classification", tuple(
            classes if classes is not None and set(words) <= set(classes) else words
        )
    low, high = min(numbers), max(numbers)
    if low < 0 and len(numbers) <= FEW:
        return "classification", tuple(str(i) for i in sorted(numbers))
    if low < 0 or high >= MOST_CLASSES:
        return "regression", ()
    if classes is not None and high < len(classes):
        return "classification", tuple(classes)
    return "classification", tuple(str(i) for i in range(int(high) + 1))


def _numbered(labels: Sequence[Label], classes: Sequence[str]) -> tuple[float, ...]:
    """Replace the names of classes by their numbers; other numbers stay as they are."""
    number: dict[str, Label] = {name: i for i, name in enumerate(classes)}
    return tuple(number.get(str(value), value) for value in labels)  # type: ignore[misc]
