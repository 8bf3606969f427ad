"""The tasks of GLUE, from the hub; STS-B has a file of its own."""

from __future__ import annotations

from functools import partial

from ..hub import from_hub
from . import NamedTask

BY_ACCURACY = ("mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "wnli")
METRICS = {"cola": "matthews", **dict.fromkeys(BY_ACCURACY, "accuracy")}
TASKS = {
    name: NamedTask(
        f"GLUE, measured by {metric}", partial(from_hub, f"nyu-mll/glue:{name}", name=name, metric=metric)
    )
    for name, metric in sorted(METRICS.items())
}
