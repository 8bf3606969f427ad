"""A folder that is written beside its target and takes its place when it is whole."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..core.errors import EspalierError
from .leftovers import beside, tell

PLAN = "plan.json"
MODELLING = "modeling_espalier.py"
STATES = ".espalier-training"  # of a training that is not finished
RECORD = "training.json"  # of a training: it tells of the weights it lies beside


@contextmanager
def writing(folder: str | Path, *, carry: bool = True) -> Iterator[Path]:
    """A temporary folder beside the target that takes its place when everything has been written.

    What stood there and was not written anew is carried over, unless the new folder has all of its own.
    """
    target = Path(folder).resolve()
    check_replaceable(folder)
    tell(target)
    place, old = beside(target), beside(target, "old.")
    try:
        place.mkdir(parents=True)
        yield place
        if carry:
            _carry_over(target, place)
        _exchange(place, target, old)
    except OSError as error:
        raise EspalierError(_cannot_write(folder, error, old)) from error
    except Exception as error:
        if "No space left" in str(error) or "SafetensorError" in type(error).__name__:
            raise EspalierError(_cannot_write(folder, error, old)) from error
        raise
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if target.exists():  # or what stood there would be lost with it
            shutil.rmtree(old, ignore_errors=True)


def check_replaceable(folder: str | Path) -> None:
    """Only an older model is replaced, and only one that holds nothing else."""
    target = Path(folder).resolve()
    if target.exists() and not target.is_dir():
        raise EspalierError(f"{folder} is a file; give the name of a folder")
    if not target.is_dir() or not any(target.iterdir()):
        return
    if target in (Path.cwd(), *Path.cwd().parents):
        raise EspalierError(f"{folder} is where you are; give the name of a folder below it")
    others = sorted(p.name for p in target.iterdir() if p.is_dir())
    if others or not _is_model(target):
        what = f"the folder {others[0]}" if others else "something that is not a model"
        raise EspalierError(f"{folder} holds {what}; it will not be replaced. Choose another name")


def _exchange(place: Path, target: Path, old: Path) -> None:
    """The new folder for the old one. Between the two renames neither is there: Ctrl-C must not end there."""
    try:
        if target.exists():
            os.replace(target, old)
        os.replace(place, target)
    except BaseException:
        if old.exists() and not target.exists():
            os.replace(old, target)
        raise


def _is_model(folder: Path) -> bool:
    try:
        return "model_type" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def _carry_over(old: Path, new: Path) -> None:
    """What the older save had and this one does not write: a tokenizer, a README. Not its weights."""
    for file in old.iterdir() if old.is_dir() else ():
        weights = re.fullmatch(
            r"((pytorch_)?model(-\d.*)?\.(safetensors|bin)(\.index\.json)?|sparse\.safetensors)",
            file.name,
        )
        if not weights and file.name not in (PLAN, MODELLING, RECORD) and not (new / file.name).exists():
            shutil.copy2(file, new / file.name)


def _cannot_write(folder: str | Path, error: Exception, old: Path) -> str:
    why = getattr(error, "strerror", None) or str(error)
    before = f"in {old} now: rename it" if old.exists() else "untouched; choose another place"
    return f"cannot write {folder}: {why}. What stood there before is {before}"
