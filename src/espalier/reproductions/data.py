"""The data of a recipe: as published (the first examples, in order), or disjoint draws by a seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

from ..core.errors import DataError, UnknownNameError
from ..tasks import Examples, Task
from ..tasks.hub import load_splits, read_columns
from ..tasks.sources import is_files, read_tables
from ..tasks.tables import Table, recognise, take_examples
from ..tasks.task import remove_shared
from .recipe import Mode, Recipe

PURPOSES = ("calibration", "validation", "test")


def task_of(recipe: Recipe, *, faithful: bool = False) -> tuple[Task, dict[str, Examples]]:
    """Return the task of a recipe, and calibration examples by criterion for those that have their own.

    A faithful task may use the same example for two purposes; this is noted.
    """
    mode = recipe.mode(faithful)
    tables = _tables(recipe, mode)
    numbers = _class_numbers(recipe, tables)
    splits = _splits(recipe, mode, tables, numbers)
    notes = [f"recipe {recipe.name}, {'faithful' if faithful else 'honest'}"]
    if not mode.first:
        splits = remove_shared(splits, notes)
    keys = [set(examples.keys()) for examples in splits.values()]
    if any(a & b for i, a in enumerate(keys) for b in keys[:i]):
        notes.append("calibration, validation and test share texts, as published: the numbers are too good")
    own = {}
    if mode.own_calibration:
        whole = _labelled(recipe, tables[mode.calibration_split], numbers, mode.score_dropped)
        own = {name: whole.take(range(min(n, len(whole)))) for name, n in mode.own_calibration.items()}
    classes = tuple(map(str, range(max(recipe.labels.values()) + 1))) if recipe.labels else tuple(numbers)
    train, validation, test = splits.values()
    notes += recipe.notes
    return Task(recipe.name, train, validation, test, classes=classes, notes=tuple(notes)), own


def _tables(recipe: Recipe, mode: Mode) -> dict[str, Table]:
    """Return the tables of the splits that a mode uses."""
    if is_files(recipe.dataset):
        found = read_tables(recipe.dataset)
    else:
        found = {split: read_columns(dataset) for split, dataset in load_splits(recipe.task).items()}
    used = {mode.calibration_split, mode.validation_split, mode.test_split}
    for split in used - set(found):
        raise UnknownNameError(f"split of {recipe.task}", split, found)
    return {split: found[split] for split in sorted(used)}


def _splits(
    recipe: Recipe, mode: Mode, tables: Mapping[str, Table], numbers: Mapping[str, int]
) -> dict[str, Examples]:
    """Return train (the calibration examples), validation and test."""
    taken: Counter[str] = Counter()
    out: dict[str, Examples] = {}
    for purpose in PURPOSES:
        split, wanted = getattr(mode, f"{purpose}_split"), getattr(mode, purpose)
        whole = _labelled(recipe, tables[split], numbers, purpose == "calibration" and mode.score_dropped)
        positions, start = list(range(len(whole))), taken[split]
        if not mode.first:
            random.Random(recipe.seed).shuffle(positions)
            taken[split] += wanted
        chosen = sorted(positions[start : start + wanted])
        if not chosen:
            raise DataError(f"{recipe.task}, {split}: {len(whole)} examples are too few for {purpose} too")
        out["train" if purpose == "calibration" else purpose] = whole.take(chosen)
    return out


def _labelled(recipe: Recipe, table: Table, numbers: Mapping[str, int], also_dropped: bool) -> Examples:
    """Return examples with the numbers of their classes; without labels, if dropped ones are wanted too."""
    columns = recognise(table, recipe.task, text=recipe.text, pair=recipe.pair, label=recipe.label)
    labels = [str(value) for value in table[recipe.label]]
    rows = [i for i, label in enumerate(labels) if also_dropped or label in numbers]
    classes = None if also_dropped else tuple(numbers[labels[i]] for i in rows)
    return take_examples(table, columns, rows, classes)


def _class_numbers(recipe: Recipe, tables: Mapping[str, Table]) -> dict[str, int]:
    """Return the class of each label: as the recipe has it, else one numbering for all splits.

    Numbers keep their own; words are sorted, and are matched with the model's classes by name later.
    """
    if recipe.labels:
        return dict(recipe.labels)
    labels = {str(value) for table in tables.values() for value in table[recipe.label]}
    if all(label.lstrip("-").isdigit() for label in labels):
        return {str(i): i for i in range(max(map(int, labels)) + 1)}
    return {label: i for i, label in enumerate(sorted(labels))}
