"""The parts of a recipe's data: as published (the first so many, in order), or drawn apart by a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from ...core.errors import EspalierError
from ...tasks import Examples, Task
from ...tasks.columns import recognise
from ...tasks.files import is_files, split_tables
from ...tasks.hub import hub_tables
from ...tasks.splits import disjoint
from .recipe import Mode, Recipe

PARTS = ("calibration", "validation", "test")


def task_of(recipe: Recipe, *, faithful: bool = False) -> tuple[Task, dict[str, Examples]]:
    """The task that a recipe describes, and calibration texts for criteria that have their own.

    A faithful one may use the same text for two purposes, and says so.
    """
    mode = recipe.mode(faithful)
    tables = split_tables(recipe.dataset) if is_files(recipe.dataset) else hub_tables(recipe.task)
    for split in (mode.calibration_split, mode.validation_split, mode.test_split):
        if split not in tables:
            raise EspalierError(
                f"{recipe.task} has no split {split!r}; it has: {', '.join(tables) or 'none'}"
            )
    parts = _portions(recipe, mode, tables)
    notes = [f"recipe {recipe.name}, {'faithful' if faithful else 'honest'}"]
    if not mode.first:
        named = {"train": parts["calibration"], **parts}
        apart = disjoint({part: named[part] for part in ("train", "validation", "test")}, notes)
        parts = {"calibration": apart["train"], **apart}
    shared = [set(parts[part].keys()) for part in PARTS]
    if any(a & b for i, a in enumerate(shared) for b in shared[:i]):
        notes.append("calibration, validation and test share texts, as published: these numbers flatter")
    own: dict[str, Examples] = {}
    if mode.entropy_calibration:
        numbers = _numbers(recipe, mode, tables)
        whole = _labelled(recipe, tables[mode.calibration_split], numbers, mode.score_dropped)
        own["entropy"] = whole.take(range(min(mode.entropy_calibration, len(whole))))
    task = Task(
        recipe.name,
        parts["calibration"],
        parts["validation"],
        parts["test"],
        classes=_classes(recipe, mode, tables),
        notes=(*notes, *recipe.notes),
    )
    return task, own


def _portions(recipe: Recipe, mode: Mode, tables: Mapping[str, Any]) -> dict[str, Examples]:
    numbers = _numbers(recipe, mode, tables)
    taken: dict[str, int] = {}
    out: dict[str, Examples] = {}
    for part in PARTS:
        split, wanted = getattr(mode, f"{part}_split"), getattr(mode, part)
        dropped = part == "calibration" and mode.score_dropped
        whole = _labelled(recipe, tables[split], numbers, dropped)
        if mode.first:
            out[part] = whole.take(range(min(wanted, len(whole))))
            continue
        places = list(range(len(whole)))
        random.Random(recipe.seed).shuffle(places)
        start = taken.get(split, 0)
        taken[split] = start + wanted
        chosen = sorted(places[start : start + wanted])
        if not chosen:
            raise EspalierError(
                f"{recipe.task}, {split}: {len(whole)} examples are not enough for {part} as well"
            )
        out[part] = whole.take(chosen)
    return out


def _labelled(
    recipe: Recipe, table: Mapping[str, Any], numbers: Mapping[str, int], dropped_too: bool
) -> Examples:
    """Examples with the model's numbers for their labels; without labels, if the unmapped are wanted too."""
    found = recognise(table, text=recipe.text, pair=recipe.pair, label=recipe.label, where=recipe.task)
    raw = [str(value) for value in table[recipe.label]]
    places = [i for i, value in enumerate(raw) if dropped_too or value in numbers]
    return Examples(
        tuple(str(table[found.text][i]) for i in places),
        None if found.pair is None else tuple(str(table[found.pair][i]) for i in places),
        None if dropped_too else tuple(numbers[raw[i]] for i in places),
    )


def _names(raw: list[str]) -> list[str]:
    """Numbers stand for themselves; words are sorted, and find the model's own numbers by their names."""
    if all(value.lstrip("-").isdigit() for value in raw):
        return [str(i) for i in range(max(int(value) for value in raw) + 1)]
    return sorted(set(raw))


def _numbers(recipe: Recipe, mode: Mode, tables: Mapping[str, Any]) -> dict[str, int]:
    """Which class a label is: as the recipe says, or one numbering for all the splits it uses."""
    if recipe.labels:
        return dict(recipe.labels)
    used = {mode.calibration_split, mode.validation_split, mode.test_split}
    every = [str(v) for split in sorted(used) for v in tables[split][recipe.label]]
    return {name: i for i, name in enumerate(_names(every))}


def _classes(recipe: Recipe, mode: Mode, tables: Mapping[str, Any]) -> tuple[str, ...]:
    if recipe.labels:
        return tuple(str(i) for i in range(max(recipe.labels.values()) + 1))
    return tuple(_numbers(recipe, mode, tables))
