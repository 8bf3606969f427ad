"""From tables (columns of values) to a task: columns recognised, answers numbered, parts made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import EspalierError
from .columns import Columns, recognise
from .splits import three_parts
from .task import Examples, Task

Table = Mapping[str, Sequence[Any]]
MOST_CLASSES = 1000  # whole numbers beyond this are a scale, not classes
FEW = 20  # different whole numbers, some below zero, that still are classes


def from_tables(
    name: str,
    tables: Mapping[str, Table],
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    classes: Sequence[str] | None = None,
    metric: str | None = None,
    seed: int = 0,
) -> Task:
    """A task of the parts in `tables`; parts without answers are left out, and said so."""
    columns = {
        part: recognise(table, text=text, pair=pair, label=label, where=f"{name} ({part})")
        for part, table in tables.items()
    }
    if all(found.label is None for found in columns.values()):
        if any(len(table) > 1 for table in tables.values()):
            some = next(iter(tables.values()))
            raise EspalierError(
                f"cannot tell which column of {name} holds the answers. It has: {', '.join(some)}. "
                "Type --label COLUMN; text alone, to measure perplexity, is a table of one column"
            )
        return _language(name, tables, columns, seed)
    notes: list[str] = []
    raw: dict[str, tuple[Table, Columns, list[int]]] = {}
    for part, table in tables.items():
        found = columns[part]
        values = [] if found.label is None else table[found.label]
        places = _answered(table, found, values, classes is not None)
        if not places:
            notes.append(f"{part} has no answers and is left out")
            continue
        if len(places) < len(values):
            notes.append(f"{len(values) - len(places)} {part} rows without an answer left out")
        raw[part] = (table, found, places)
    answers = {
        part: [_number(table[found.label or ""][i]) for i in places]
        for part, (table, found, places) in raw.items()
    }
    kind, names = _kind(answers, classes)
    number = {name: i for i, name in enumerate(names)}
    examples = {}
    for part, (table, found, places) in raw.items():
        labels = answers[part]
        if kind == "classification":
            # Numbers are the classes' own; words find theirs.
            labels = [number[str(v)] if str(v) in number else int(v) for v in labels]
        examples[part] = Examples(
            tuple(str(table[found.text][i]) for i in places),
            None if found.pair is None else tuple(str(table[found.pair][i]) for i in places),
            tuple(labels),
        )
    parts, made = three_parts(examples, seed=seed, where=name)
    usual = "accuracy" if kind == "classification" else "spearman"
    return Task(
        name,
        parts["train"],
        parts["validation"],
        parts["test"],
        kind,
        names,
        metric or usual,
        (*notes, *made),
    )


def _language(name: str, tables: Mapping[str, Table], columns: Mapping[str, Columns], seed: int) -> Task:
    examples = {
        part: Examples(tuple(str(value) for value in table[columns[part].text]))
        for part, table in tables.items()
    }
    parts, notes = three_parts(examples, seed=seed, where=name, running=True)
    return Task(
        name,
        parts["train"],
        parts["validation"],
        parts["test"],
        "language",
        metric="perplexity",
        notes=tuple(notes),
    )


def _answered(table: Table, found: Columns, values: Sequence[Any], named: bool) -> list[int]:
    """Rows with a text and an answer. −1 is none where classes have names, or where there is nothing else."""
    known = [_number(value) for value in values]
    missing: tuple[Any, ...] = (None, "", "-")
    if named or all(value == -1 for value in known):
        missing = (*missing, -1)
    texts = [table[column] for column in (found.text, found.pair) if column]
    return [
        i
        for i, value in enumerate(known)
        if value not in missing and not any(text[i] is None or text[i] != text[i] for text in texts)
    ]


def _number(value: Any) -> Any:
    """The number in a string, if it is one: files know no types. What is not a number (nan) is nothing."""
    if value is None or value != value:
        return None
    if not isinstance(value, str | int | float):
        raise EspalierError(
            f"an answer is a number or a word; there is {value!r}. Type --label COLUMN for another column"
        )
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return value
    return int(value) if float(value).is_integer() else float(value)


def _kind(answers: Mapping[str, Sequence[Any]], classes: Sequence[str] | None) -> tuple[str, tuple[str, ...]]:
    """Classes and their names, or a scale. Whole numbers from 0 keep their own numbers as classes."""
    values = {value for part in answers.values() for value in part}
    if not values:
        raise EspalierError(
            "no part has answers. Type --label COLUMN, or give text alone to measure perplexity"
        )
    if any(isinstance(value, float) for value in values):
        if any(isinstance(value, str) for value in values):
            raise EspalierError("the answers are partly words and partly fractions")
        return "regression", ()
    if all(isinstance(value, int) for value in values):
        if min(values) < 0 and len(values) <= FEW:
            return "classification", tuple(str(i) for i in sorted(values))
        if min(values) < 0 or max(values) >= MOST_CLASSES:
            return "regression", ()
        if classes is not None and max(values) < len(classes):
            return "classification", tuple(classes)
        return "classification", tuple(str(i) for i in range(max(values) + 1))
    found = sorted({str(value) for value in values})
    if classes is not None and set(found) <= set(classes):
        return "classification", tuple(classes)
    return "classification", tuple(found)
