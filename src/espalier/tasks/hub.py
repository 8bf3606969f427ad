"""Tasks on the hub: GLUE by its short names, and any dataset as `owner/name` or `owner/name:config`."""

from __future__ import annotations

from typing import Any

from ..core.errors import EspalierError
from .columns import recognise
from .splits import PARTS, part_of
from .tables import from_tables
from .task import Task

GLUE = {  # short name -> the measure it is judged by
    "cola": "matthews",
    "mnli": "accuracy",
    "mrpc": "accuracy",
    "qnli": "accuracy",
    "qqp": "accuracy",
    "rte": "accuracy",
    "sst2": "accuracy",
    "stsb": "spearman",
    "wnli": "accuracy",
}


def from_hub(name: str, **options: Any) -> Task:
    """Every part of a dataset that carries answers; of several validation parts, the first."""
    if name in GLUE:
        options = {"metric": GLUE[name], **options}
    parts = _parts(name)
    tables: dict[str, Any] = {}
    classes = None
    for split, table in parts.items():
        part = part_of(split)
        if part is None or part in tables:  # validation_mismatched comes after validation_matched
            continue
        tables[part] = {column: table[column][:] for column in table.column_names}
        found = recognise(
            tables[part], **{key: options.get(key) for key in ("text", "pair", "label")}, where=name
        )
        if found.label is not None:  # the hub knows the names of the classes
            classes = getattr(table.features[found.label], "names", None) or classes
    if not tables:
        raise EspalierError(
            f"the dataset {name} has no part named after {', '.join(PARTS)}; it has: {', '.join(parts)}"
        )
    return from_tables(name, tables, classes=classes, **options)


def hub_tables(name: str) -> dict[str, Any]:
    """Every part of a dataset under its own name."""
    return {
        split: {column: table[column][:] for column in table.column_names}
        for split, table in _parts(name).items()
    }


def _parts(name: str) -> Any:
    try:
        from datasets import load_dataset
        from datasets.utils.logging import disable_progress_bar
        from huggingface_hub.utils import logging
    except ImportError:
        raise EspalierError(
            "datasets of the hub need datasets. Type: pip install 'espalier[tasks]'"
        ) from None
    disable_progress_bar()
    logging.set_verbosity_error()  # it tells of every retry
    where, _, config = ("nyu-mll/glue", "", name) if name in GLUE else name.partition(":")
    try:
        return load_dataset(where, config or None)
    except Exception as error:  # the hub, the network and the dataset each fail in their own way
        first = " ".join(str(error).split()) or type(error).__name__
        raise EspalierError(
            f"no task {name!r}: there is no such file or folder, and the hub did not give a dataset of that "
            f"name ({first}). Type espalier list tasks, or give a file: --task data.csv"
        ) from None
