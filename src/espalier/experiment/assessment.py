"""What a model is worth and what it costs: metrics with intervals, parameters, zeros, MACs, bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..analysis.bootstrap import value_interval
from ..analysis.curves import BASE
from ..analysis.reader import read_run
from ..architectures.sites import sites as find_sites
from ..evaluation import metrics
from ..evaluation.cost import cost
from ..evaluation.predictions import unpack
from ..pruning.loop import WorkingCopy
from .manifest import check_same_model
from .record import mask_at
from .session import TEST, VALIDATION, Session

SPLITS = (VALIDATION, TEST)


def assess(
    session: Session,
    model: Any,
    *,
    folder: Path | None = None,
    rows: Mapping[str, Any] | None = None,
    trained: bool = False,
) -> dict[str, Any]:
    """Measure validation and test data and count the model; `rows` are measured splits, by name."""
    worth = {split: measure_split(session, model, split, (rows or {}).get(split)) for split in SPLITS}
    return worth | count_model(model, folder, torch.float32 if trained else session.stored)


def measure_split(session: Session, model: Any, split: str, row: Any = None) -> dict[str, Any]:
    """Return every metric of one split, and a 95 % bootstrap interval of the task's own."""
    if row is not None:
        found, values, n = row["metrics"], unpack(row["predictions"]), row["n"]
    else:
        predictions = session.predict(model, split)
        found, values = session.metrics(predictions, split), predictions.values
        n = len(values)
    metric = metrics.load(session.task.metric)
    low, high = value_interval(metric.name, session.truth(split), np.asarray(values))
    return {"n": n, "metric": metric.name, **found, "low": low, "high": high}


def count_model(model: Any, folder: Path | None = None, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Count units, parameters, zeros, MACs, and bytes: those of a folder, else in `dtype`."""
    matrices = find_sites(model, "weights")
    prunable = sum(site.units for site in matrices)
    zero = sum(int((site.linear.weight == 0).sum()) for site in matrices)
    with torch.no_grad():
        everywhere = sum(int((p == 0).sum()) for p in model.parameters())
    return {
        **cost(model).dict(),
        "zeros": everywhere,
        "prunable": prunable,
        "prunable_zeros": zero,
        "sparsity": zero / prunable if prunable else 0.0,
        "bytes": weight_bytes(model, dtype, folder),
    }


def weight_bytes(model: Any, dtype: torch.dtype, folder: Path | None) -> int:
    """Return the bytes of the weights: on disk if there is a folder, else of all parameters in `dtype`."""
    size = 0 if folder is None else sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return size or sum(p.numel() for p in model.parameters()) * dtype.itemsize


def assess_run(session: Session, run: Path, tolerance: float) -> list[dict[str, Any]]:
    """Measure what every method of a comparison chose, on the session's data."""
    check_same_model(session, run)
    results, small = read_run(run), WorkingCopy(session.model, session.sites)
    found = []
    for label in (BASE, *results.methods):
        removed = 0.0 if label == BASE else results.first_trial(label).within(tolerance)
        with small.at(mask_at(session, run, label, removed)) as (model, _):
            worth = {split: measure_split(session, model, split) for split in SPLITS}
            counted = count_model(model)["parameters"]
        found.append({"method": label, "removed": results.count(removed), "parameters": counted, **worth})
    return found
