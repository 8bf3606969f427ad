"""The tasks of GLUE, from the hub."""

from __future__ import annotations

from functools import partial

from ..hub import from_hub
from . import NamedTask

METRICS = {
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
TASKS = {
    name: NamedTask(
        f"GLUE, measured by {metric}", partial(from_hub, f"nyu-mll/glue:{name}", name=name, metric=metric)
    )
    for name, metric in METRICS.items()
}
