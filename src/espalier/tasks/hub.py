"""Datasets of the hub, by `owner/name` or `owner/name:config`, and those that the caller has loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import DataError
from ..io.hub import UNREACHABLE, hub_access
from ..io.plugin import import_optional
from .tables import Table, from_tables, recognise
from .task import SPLITS, Task, split_of

if TYPE_CHECKING:
    from datasets import Dataset


def from_hub(dataset: str, *, name: str | None = None, **options: Any) -> Task:
    """Return the task in a dataset of the hub, under its own or another name."""
    return from_datasets(name or dataset, load_splits(dataset), **options)


def from_datasets(name: str, datasets: Mapping[str, Dataset], **options: Any) -> Task:
    """Return the task in the splits of a `DatasetDict`; of several validation splits, the first is taken."""
    tables: dict[str, Table] = {}
    classes = None
    for own_name, dataset in datasets.items():
        split = split_of(own_name)
        if split is None or split in tables:  # validation_mismatched comes after validation_matched
            continue
        tables[split] = read_columns(dataset)
        given = {key: options.get(key) for key in ("text", "pair", "label")}
        label = recognise(tables[split], name, **given).label
        named = None if label is None else getattr(dataset.features[label], "names", None)
        if label is not None and named:  # of classes with names a dataset holds the numbers
            classes = named
            tables[split] = {**tables[split], label: _class_names(tables[split][label], named)}
    if not tables:
        found = ", ".join(datasets) or "none"
        raise DataError(f"{name} has no split named after {', '.join(SPLITS)}; its splits: {found}")
    return from_tables(name, tables, classes=classes, **options)


def _class_names(numbers: Sequence[Any], names: Sequence[str]) -> list[str | None]:
    """Return the names of classes; None for −1, which is no class."""
    return [None if number is None or number < 0 else names[number] for number in numbers]


def read_columns(dataset: Dataset) -> Table:
    """Return {column: values} of one split."""
    if not hasattr(dataset, "__len__"):
        raise DataError("streamed datasets cannot be split or sampled: load it without `streaming`")
    return {column: dataset[column][:] for column in dataset.column_names}


def load_splits(dataset: str) -> Mapping[str, Dataset]:
    """Load every split of `owner/name` or `owner/name:config` under its own name."""
    library = import_optional("datasets", "tasks", "loading a dataset of the hub")
    from huggingface_hub.utils import logging

    library.disable_progress_bars()
    logging.set_verbosity_error()  # else every retry is logged
    where, _, config = dataset.partition(":")
    with hub_access() as reachable:
        try:
            found: Mapping[str, Dataset] = library.load_dataset(where, config or None)
        except Exception as error:  # the hub, the network and the dataset each fail in their own way
            reason = " ".join(str(error).split()) or type(error).__name__
            why = f"the hub gave no dataset {dataset!r} ({reason})"
            raise DataError(why if reachable else f"cannot load {dataset!r}: {UNREACHABLE}") from None
    return found
