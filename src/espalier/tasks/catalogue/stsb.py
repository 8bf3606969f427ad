"""The semantic textual similarity benchmark: pairs of sentences with a score from 0 to 5, from the hub."""

from __future__ import annotations

from functools import partial

from ..hub import from_hub
from . import NamedTask

DATASET = "mteb/stsbenchmark-sts"  # that of GLUE keeps the scores of its test pairs to itself
TASKS = {
    "stsb": NamedTask(
        "8,628 pairs of sentences, scored from 0 to 5, measured by spearman",
        partial(from_hub, DATASET, name="stsb", metric="spearman"),
    )
}
