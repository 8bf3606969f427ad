"""The folder that a verb writes a model to: what it says of it, and what it may not replace."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ..core.errors import FolderError
from ..core.types import PreTrainedModel
from ..engine.dtypes import DTYPES
from ..io.output import check_replaceable
from ..io.paths import CONFIG
from .model import live_name, short_name
from .session import Session


def output_of(verb: str, model: str | Path | PreTrainedModel) -> str:
    """Say what a verb writes, for the manifest of its folder: `prune of tuned`."""
    return f"{verb} of {short_name(str(model)) if isinstance(model, (str, Path)) else live_name(model)}"


def stored_in(session: Session, dtype: str | None) -> Session:
    """Return a session whose models are saved in a dtype; None is that of its model."""
    return session if dtype is None else replace(session, stored=DTYPES[dtype], opened=session.stored)


def check_not_source(folder: Path, model: str | Path | PreTrainedModel) -> None:
    """Raise if the output of a verb would replace the model that it reads."""
    if isinstance(model, (str, Path)) and Path(model).exists() and Path(model).resolve() == folder.resolve():
        raise FolderError(f"{folder} is the model itself. Choose another folder", folder)


def check_family(folder: Path) -> None:
    """Raise if a folder that is to hold several models, each in its own, is itself a model."""
    if (folder / CONFIG).exists():
        raise FolderError(
            f"{folder} is a model, and several budgets have a folder each in it. Choose another", folder
        )


def check_output(folder: Path, model: str | Path | PreTrainedModel, *, overwrite: bool) -> None:
    """Raise unless a pruned model may be written to a folder: not over its source, nor over another model."""
    check_not_source(folder, model)
    check_replaceable(folder, output_of("prune", model), overwrite=overwrite)
    near = next(p for p in (folder.resolve(), *folder.resolve().parents) if p.exists())
    if not os.access(near, os.W_OK | os.X_OK):
        raise FolderError(f"cannot write to {near}. Choose another folder", folder)
