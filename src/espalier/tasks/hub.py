"""Datasets of the hub, by `owner/name` or `owner/name:config`, and those that the caller has loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..core.errors import DataError
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
        if label is not None:  # a dataset may know the names of its classes
            classes = getattr(dataset.features[label], "names", None) or classes
    if not tables:
        found = ", ".join(datasets) or "none"
        raise DataError(f"{name} has no split named after {', '.join(SPLITS)}; its splits: {found}")
    return from_tables(name, tables, classes=classes, **options)


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
    try:
        found: Mapping[str, Dataset] = library.load_dataset(where, config or None)
    except Exception as error:  # the hub, the network and the dataset each fail in their own way
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"the hub gave no dataset {dataset!r} ({reason})") from None
    return found
