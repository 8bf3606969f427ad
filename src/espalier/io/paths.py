"""Names of files and folders that the toolkit reads and writes. No other file spells them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

# a run of an experiment
RUN = "run.json"
ROWS = "rows.jsonl"
SCORES = "scores.jsonl"
POOLING = "pooling.json"
LOCK = ".lock"

# a model
CONFIG = "config.json"
PLAN = "plan.json"
MODELING = "modeling_espalier.py"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
SPARSE_WEIGHTS = "sparse.safetensors"

# a training
TRAINING_RECORD = "training.json"  # describes the weights in the same folder
TRAINING_STATE_FOLDER = ".espalier-training"  # of a training that has not finished
TRAINING_STATE = "state.safetensors"
TRAINING_STOP = "stopped.json"  # the weights that an interrupted training left in memory
TRAINING_RESULT = "finished"  # a folder for the trained model while it is written

# a report
TABLES = "tables"
FIGURES = "figures"
WORKBOOK = "report.xlsx"
SUMMARY = "summary.md"
PUBLISHED = "published"  # a folder for files in the published schema
ORDERS = "orders.json"  # of published results


def optional_path(folder: str | Path | None) -> Path | None:
    """Return a path, unless there is none."""
    return None if folder is None else Path(folder)


def run_beside(folder: Path) -> Path:
    """Return the run that a pruned model is made from, beside the folder of the model."""
    return folder.with_name(f"{folder.name}-run")


def file_safe(name: str) -> str:
    """Return the name with the characters escaped that some file system refuses (%3A for a colon)."""
    return quote(name, safe=" ()") or "model"
