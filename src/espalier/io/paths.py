"""Names of files and folders that the toolkit reads and writes. No other file spells them."""

from __future__ import annotations

from os import PathLike, fsencode
from pathlib import Path
from urllib.parse import quote

from ..core.errors import InvalidValueError

LONGEST_NAME, LONGEST_PATH = 255, 4096  # bytes that common file systems allow

# a run of an experiment
RUN = "run.json"
ROWS = "rows.jsonl"
SCORES = "scores.jsonl"
POOLING = "pooling.json"
TOKENS = "tokens.json"
LOCK = ".lock"

# a model
CONFIG = "config.json"
PLAN = "plan.json"
CARD = "README.md"
GENERATION = "generation_config.json"  # which tokens end a text, and which one fills up
MODELING = "modeling_espalier.py"
WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"  # read by others alone
WEIGHTS_INDEX = "model.safetensors.index.json"
SPARSE_WEIGHTS = "sparse.safetensors"
MODULE_SETTINGS = ("config_sentence_transformers.json", "sentence_bert_config.json")
MODULES = "modules.json"  # of sentence-transformers: which folders hold the modules after the model

# an exported model
EXPORT_RECORD = "export.json"
EXPORTED = {"onnx": "model.onnx", "openvino": "model.xml", "executorch": "model.pte"}

MANIFEST = ".espalier.json"  # of an output folder: what was written into it, and as what

# a training
TRAINING_RECORD = "training.json"  # describes the weights in the same folder
TRAINING_STATE_FOLDER = ".espalier-training"  # of a training that has not finished
TRAINING_STATE = "state.safetensors"
TRAINING_STOP = "stopped.json"  # the weights that an interrupted training left in memory
TRAINING_BEFORE = "before"  # a folder for the model that the training will replace
TRAINING_LOGS = "logs"  # a folder for trackers that write files
TRAINING_RESULT = "finished"  # a folder for the trained model while it is written

# a report
TABLES = "tables"
FIGURES = "figures"
WORKBOOK = "report.xlsx"
SUMMARY = "summary.md"
PAGE = "report.html"
PUBLISHED = "published"  # a folder for files in the published schema
ORDERS = "orders.json"  # of published results


def optional_path(folder: str | Path | None) -> Path | None:
    """Return a path, unless there is none."""
    return None if folder is None else named_path(folder, "folder")


def is_exported(folder: str | Path) -> bool:
    """Whether a folder holds a model that was exported to a runtime: it has the record of that."""
    return (Path(folder) / EXPORT_RECORD).is_file()


def run_beside(folder: Path) -> Path:
    """Return the run that a pruned model is made from, beside the folder of the model."""
    place = folder if folder.name not in ("", "..") else folder.resolve()
    return place.parent / f"{place.name}-run"


def budget_beside(folder: Path) -> Path:
    """Return the file with what a budget run has finished, beside the folder of its model or models."""
    return folder.with_name(f"{folder.name}-budget.jsonl")


def file_safe(name: str) -> str:
    """Return the name with the characters escaped that some file system refuses (%3A for a colon)."""
    return quote(name, safe=" ()") or "model"


def problem_of(name: str | PathLike[str]) -> str:
    """Return what a name must be so that a file or a folder can have it; empty if it is so."""
    raw = fsencode(name) if not isinstance(name, str) else name.encode("utf-8", "surrogateescape")
    if not raw.strip() or b"\0" in raw:
        return "a name or a path, not empty and without zero bytes"
    if len(raw) > LONGEST_PATH or any(len(part) > LONGEST_NAME for part in raw.split(b"/")):
        return f"a name of at most {LONGEST_NAME} bytes"
    return ""


def named_path(name: str | Path, parameter: str) -> Path:
    """Return a name that a user gave as a path; raise for one that no file or folder can have."""
    if problem := problem_of(name):
        shown = repr(str(name))
        shown = shown if len(shown) < 60 else shown[:57] + "…"
        raise InvalidValueError(f"`{parameter}` must be {problem}; got {shown}", parameter)
    return Path(name)
