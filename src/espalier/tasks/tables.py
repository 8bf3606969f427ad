"""From tables (columns of values) to a task: columns recognised by name, classes numbered, splits made."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..core.errors import DataError, InvalidValueError, UnknownNameError
from .lines import Lines
from .task import KINDS, SCALES, SIMILARITY, SPLITS, UNLABELLED, Examples, Task, make_splits

Table = Mapping[str, Sequence[object]]
PAIRS = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question", "context"),
    ("text1", "text2"),
    ("query", "passage"),
    ("sentence_a", "sentence_b"),
    ("text_a", "text_b"),
)
TEXTS = ("sentence", "text", "review", "content", "tweet", "description", "title", "question")
LABELS = ("label", "labels", "class", "target", "sentiment", "category", "gold_label", "score", "y")
TRAIN = SPLITS[0]
LEFT_OUT = "{} has no labels and is left out"
SCORE = "similarity"  # a label too, if there is no other
MOST_CLASSES = 1000  # whole numbers beyond this are a scale, not classes
LARGEST = 1e300  # a label beyond this is as good as infinite
FEW = 20  # so many different whole numbers, some of them negative, are still classes
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)
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
        if given is not None and given not in names:
            raise UnknownNameError(f"column of {where}", given, names, parameter)
    lower = {name.lower(): name for name in names}
    if label is None:
        known = (*LABELS, SCORE)
        label = next((lower[n] for n in known if n in lower and lower[n] not in (text, pair)), None)
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
    return Columns(text, pair, label)


def check_pairs(name: str, pairs: bool) -> None:
    """Raise unless every example of a similarity task is a pair."""
    if not pairs:
        raise DataError(
            f"similarity is that of two texts, and {name} has one column of them. Name the second with `pair`"
        )


def _is_text(values: Sequence[object]) -> bool:
    return any(isinstance(value, str) and value for value in values[:50])


def _has_words(values: Sequence[object]) -> bool:
    return any(
        isinstance(value, str) and value.strip() and not NUMBER.fullmatch(value) for value in values[:50]
    )


def from_tables(
    name: str,
    tables: Mapping[str, Table],
    *,
    classes: Sequence[str] | None = None,
    metric: str | None = None,
    kind: str | None = None,
    running: bool = False,
    texts_suffice: bool = False,
    seed: int = 0,
    **given: str | None,
) -> Task:
    """Return a task of the splits in `tables`; notes tell what was left out, and how labels are numbered.

    `given` may name the columns `text`, `pair` and `label`. `classes` are the names of all classes, in their
    order; labels are then names. With `running`, text without labels is a language task. Of kind unlabelled
    only texts are read, for a classifier. A training split without labels is left out unless `texts_suffice`.
    """
    if kind is not None and kind not in (*KINDS, UNLABELLED):
        raise InvalidValueError(f"`kind` is one of {', '.join((*KINDS, UNLABELLED))}; got {kind!r}", "kind")
    columns = {split: recognise(table, f"{name} ({split})", **given) for split, table in tables.items()}
    unlabelled = all(found.label is None for found in columns.values())
    notes = _other_texts(tables, columns) if given.get("text") is None else []
    if kind == "language" or (unlabelled and running and kind is None):
        examples = {split: Examples(_strings(tables[split][columns[split].text])) for split in tables}
        splits, made = make_splits(examples, seed=seed, where=name, running=True)
        notes += made
        return Task(name, **splits, kind="language", classes=(), metric="perplexity", notes=tuple(notes))
    if kind == UNLABELLED:
        taken = {split: take_filled(table, columns[split]) for split, table in tables.items()}
        splits, made = make_splits(taken, seed=seed, where=name)
        noted = (*notes, *made)
        return Task(name, **splits, kind="classification", classes=(), metric="accuracy", notes=noted)
    if kind == SIMILARITY:
        check_pairs(name, all(found.pair for found in columns.values()))
    if unlabelled:
        widest = max(tables.values(), key=len)
        raise DataError(
            f"{name} has no column that is known to hold labels. It has: {', '.join(widest)}. Name it with "
            f"`label`; known are {', '.join(LABELS)}. For running text (perplexity of a language model), "
            'give a .txt file, or `kind="language"`; texts alone are enough to prune a classifier to a '
            'budget, with `kind="unlabelled"`'
        )
    rows: dict[str, list[int]] = {}
    labels: dict[str, list[Any]] = {}
    for split, table in tables.items():
        values = [_label(value, classes) for value in table.get(columns[split].label or "", ())]
        rows[split] = _usable(table, columns[split], values, split, notes)
        labels[split] = [values[i] for i in rows[split]]
    texts = take_filled(tables[TRAIN], columns[TRAIN]) if texts_suffice and rows.get(TRAIN) == [] else None
    if texts:
        notes[:] = [note for note in notes if note != LEFT_OUT.format(TRAIN)]
        notes.append(f"{TRAIN} has no labels: its {len(texts)} texts are used without")
    if classes is None and any(isinstance(value, str) for those in labels.values() for value in those):
        labels = {
            split: _as_written(tables[split], columns[split], rows[split], labels[split]) for split in tables
        }
    found, names = _kind({value for those in labels.values() for value in those}, classes, kind)
    if len(names) > 1 and all(map(_is_whole, names)) and names != tuple(map(str, range(len(names)))):
        notes.append(f"classes by their labels: {', '.join(f'{x} is {i}' for i, x in enumerate(names[:20]))}")
    examples = {
        split: take_examples(table, columns[split], rows[split], _numbered(labels[split], names))
        for split, table in tables.items()
        if rows[split]
    }
    examples |= {TRAIN: texts} if texts else {}
    splits, made = make_splits(examples, seed=seed, where=name)
    usual = "accuracy" if found == "classification" else "spearman"
    return Task(name, **splits, kind=found, classes=names, metric=metric or usual, notes=(*notes, *made))


def take_examples(
    table: Table, columns: Columns, rows: Sequence[int], labels: tuple[float, ...] | None
) -> Examples:
    """Return the examples in these rows of a table."""
    pairs = None if columns.pair is None else tuple(str(table[columns.pair][i]) for i in rows)
    return Examples(tuple(str(table[columns.text][i]) for i in rows), pairs, labels)


def take_filled(table: Table, columns: Columns) -> Examples:
    """Return the texts of a table, without labels; empty ones are left out."""
    texts = [table[column] for column in (columns.text, columns.pair) if column]
    rows = [i for i in range(len(texts[0])) if all(_is_filled(text[i]) for text in texts)]
    return take_examples(table, columns, rows, None)


def _strings(values: Sequence[object]) -> Sequence[str]:
    """Return running text; a file is not read now."""
    return values if isinstance(values, Lines) else tuple("" if x is None else str(x) for x in values)


def _other_texts(tables: Mapping[str, Table], columns: Mapping[str, Columns]) -> list[str]:
    """Say which column is the text where another could be meant."""
    for split, found in columns.items():
        table = tables[split]
        others = [name for name in table if name not in found and _has_words(table[name])]
        if others:
            taken = " and ".join(filter(None, (found.text, found.pair)))
            return [f"the text is column {taken}, not {', '.join(others)}"]
    return []


def _usable(
    table: Table, columns: Columns, labels: Sequence[Label | None], split: str, notes: list[str]
) -> list[int]:
    """Return the rows with a text and a label; add notes on the others. If all labels are −1, it is none."""
    missing: tuple[object, ...] = (None, "", "-")
    if all(value == -1 for value in labels):
        missing = (*missing, -1)
    labelled = [i for i, value in enumerate(labels) if value not in missing]
    texts = [table[column] for column in (columns.text, columns.pair) if column]
    rows = [i for i in labelled if all(_is_filled(text[i]) for text in texts)]
    if not labelled:
        notes.append(LEFT_OUT.format(split))
    elif len(labelled) < len(labels):
        notes.append(f"{len(labels) - len(labelled)} {split} rows without a label left out")
    if labelled and not rows:
        raise DataError(f"every text of {split} is empty. Name the column with `text`")
    if len(rows) < len(labelled):
        notes.append(f"{len(labelled) - len(rows)} {split} rows with an empty text left out")
    return rows


def _is_filled(text: object) -> bool:
    """Whether a text is neither missing (None, NaN) nor empty."""
    return text is not None and text == text and bool(str(text).strip())


def _label(value: object, classes: Sequence[str] | None) -> Label | None:
    """Return a label; the number in a string, if it is one, since files have no types; None for NaN."""
    if value is None or value != value:
        return None
    if not isinstance(value, str | int | float):
        raise DataError(
            f"a label is one number or word, not {str(value)[:60]!r}. Tasks with several labels for a text "
            "are not supported; give `label` for another column"
        )
    if isinstance(value, str) and (classes is not None or not NUMBER.fullmatch(value)):
        return value
    number = float(value) if isinstance(value, str) or abs(value) < LARGEST else math.inf
    if not math.isfinite(number):
        raise DataError(f"a label is infinite ({str(value)[:20]}); leave such rows out")
    return int(number) if number.is_integer() else number


def _as_written(table: Table, columns: Columns, rows: Sequence[int], labels: Sequence[Label]) -> list[Label]:
    """Return labels as the file has them: among words, 007 is a name. Fractions stay, and are refused."""
    cells = table.get(columns.label or "", ())
    return [value if isinstance(value, float) else str(cells[i]) for i, value in zip(rows, labels)]


def _kind(labels: set[Label], classes: Sequence[str] | None, kind: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the kind of task and the names of its classes: of whole numbers, those that occur."""
    if not labels:
        raise DataError("no split has labels. Name their column with `label`")
    if classes is not None and kind not in SCALES:
        if unknown := labels - set(classes):
            raise DataError(f"label {min(map(str, unknown))!r} is none of the classes {', '.join(classes)}")
        return "classification", tuple(classes)
    words = sorted(value for value in labels if isinstance(value, str))
    numbers = sorted(value for value in labels if not isinstance(value, str))
    if kind in SCALES or any(isinstance(value, float) for value in numbers):
        if words or kind == "classification":
            seen = f"words ({', '.join(words[:3])})" if words else "fractions"
            raise DataError(f"some labels are {seen}, which {'no scale' if words else 'no classes'} can have")
        return SIMILARITY if kind == SIMILARITY else "regression", ()
    if words:
        return "classification", tuple(sorted(map(str, labels)))
    scale = numbers[-1] >= MOST_CLASSES or (numbers[0] < 0 and len(numbers) > FEW)
    if scale and kind is None:
        return "regression", ()
    return "classification", tuple(map(str, numbers))


def _is_whole(name: str) -> bool:
    return re.fullmatch(r"-?\d+", name, re.ASCII) is not None


def _numbered(labels: Sequence[Label], classes: Sequence[str]) -> tuple[float, ...]:
    """Replace classes by their numbers; without classes, values stay as they are."""
    number: dict[str, int] = {name: i for i, name in enumerate(classes)}
    return tuple(number[str(value)] if classes else value for value in labels)  # type: ignore[misc]
