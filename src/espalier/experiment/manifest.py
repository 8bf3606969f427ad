"""run.json: what a run was asked, written once and compared with what is asked when it is resumed."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..analysis.curves import BASE, GRADUAL, ONE_SHOT
from ..analysis.record import VERSION, MeasuredRow, read_record
from ..core import distributed
from ..core.errors import (
    ConflictError,
    EspalierError,
    FolderError,
    FormatError,
    UnsupportedError,
    differences,
)
from ..core.terminal import log
from ..evaluation.metrics import check_above_majority
from ..evaluation.predictions import pack, unpack
from ..io.files import digest, read_json, write_json
from ..io.paths import RUN
from .classes import check_numbering
from .method import Method
from .recovery import Recovery
from .session import TEST, VALIDATION, Session

# what decides every row of a run
DECIDES = (
    "model",
    "fingerprint",
    "task",
    "target",
    "also",
    "seed",
    "max_length",
    "precision",
    "splits",
    "sites",
)
LOOKS = ("unit", "colour", "marker")  # how a method is drawn; decides no row


@contextmanager
def removing_if_empty(folder: Path) -> Iterator[None]:
    """Remove the folder of a run that is begun inside, if an error ends it before anything is measured."""
    new = not folder.exists() and distributed.rank() == 0
    try:
        yield
    except EspalierError:
        held = (
            {path.name for path in folder.iterdir() if path.stat().st_size}
            if new and folder.is_dir()
            else {""}
        )
        if held <= {RUN}:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def begin(session: Session, methods: Sequence[Method], folder: Path, **asked: Any) -> None:
    """Write what is asked, or raise if a run begun before was asked something else."""
    check_folder(folder)
    now = _describe(session, methods, asked)
    if (folder / RUN).exists():
        before = read_manifest(folder)
        for name in DECIDES:
            if before.get(name) != now[name]:
                _refuse(folder, name, before.get(name), now[name])
        _check_methods(folder, before.get("settings") or {}, now["settings"])
        now["settings"] = {**(before.get("settings") or {}), **now["settings"]}
        now["methods"] = list(dict.fromkeys([*before.get("methods", ()), *now["methods"]]))
    write_json(folder / RUN, now)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return run.json of a run that this version can add to."""
    found = read_json(folder / RUN)
    version = found.get("version")
    if type(version) is not int or version != VERSION:
        age = "an older" if isinstance(version, int) and version < VERSION else "a newer or unknown"
        raise FormatError(
            f"{folder} was written by {age} espalier (version {version!r} of run.json; this one writes "
            f"{VERSION}). Reports can read older runs; to add to it, choose another folder",
            folder / RUN,
        )
    read_record(folder)  # raises for what is damaged
    return found


def begun_precision(folder: Path, precision: str) -> str:
    """Return the precision that a run was begun with if `precision` is auto, else `precision`."""
    begun = precision == "auto" and (folder / RUN).is_file()
    return str(read_manifest(folder).get("precision", precision)) if begun else precision


def _refuse(folder: Path, name: str, before: Any, now: Any) -> None:
    differ = _other_examples(before, now) if name == "splits" else differences(before, now)
    raise ConflictError(
        f"{folder} holds a run with another {name} ({differ}). Choose another folder, or delete this one",
        folder,
        differ,
    )


def _check_methods(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for label in before.keys() & now.keys():
        # one order may be measured after other numbers of units; trials are averaged, so all alike
        left_out = LOOKS if (now[label].get("trials") or 1) > 1 else (*LOOKS, "every")
        then, same = ({k: v for k, v in s[label].items() if k not in left_out} for s in (before, now))
        if then != same:
            differ = differences(then, same)
            raise ConflictError(
                f"{folder} holds {label} with other settings ({differ}). Choose another folder",
                folder,
                differ,
            )


def _other_examples(before: Any, now: Mapping[str, Any]) -> str:
    """`validation of 60 examples, now 40`: fingerprints and labels mean nothing to a reader."""
    found = []
    for split, described in now.items():
        old = before.get(split) if isinstance(before, dict) else None
        if isinstance(old, dict) and old != described:
            same = old.get("n") == described["n"]
            change = "as many others" if same else f"now {described['n']}"
            found.append(f"{split} of {old.get('n')} examples, {change}")
    return "; ".join(found) or "they are not described"


def check_folder(folder: Path) -> None:
    """Raise unless a folder is new, empty, or that of a run begun before."""
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file; name a folder", folder)
    if (folder / RUN).exists() or not folder.is_dir():
        return
    others = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
    if others:
        raise FolderError(
            f"{folder} is not a run ({RUN} is missing) and holds {others[0]}. Choose another", folder
        )


def check_processes(target: str, folder: object) -> None:
    """Raise if several processes were started for what one does, or without a folder that they share."""
    if distributed.is_launched() and (target == "weights" or folder is None):
        raise UnsupportedError("several processes prune heads and neurons, and need a `folder`; start one")


def _describe(session: Session, methods: Sequence[Method], asked: dict[str, Any]) -> dict[str, Any]:
    import transformers

    task, calibration = session.task, session.calibration
    splits: dict[str, Any] = {
        "calibration": {
            "n": calibration.predictions,
            "fingerprint": session.calibrated_on.fingerprint(),
            "batches": digest(
                repr([[list(map(list, calibration.positions))], list(map(list, calibration.groups))]).encode()
            ),
        }
    }
    for split in (VALIDATION, TEST):
        truth = session.truth(split)
        splits[split] = {
            "n": session.batches(split).predictions,
            "fingerprint": getattr(task, split).fingerprint(),
            "labels": None if truth is None else pack(truth, task.kind),
        }
    return {
        "version": VERSION,
        "model": session.name,
        "class": type(session.model).__name__,
        "fingerprint": session.fingerprint,
        "task": task.name,
        "classes": list(task.classes),
        "metric": task.metric,
        "target": session.target,
        "also": list(session.also),
        "max_length": session.max_length,
        "split_seed": session.split_seed,
        "columns": session.columns,
        "precision": session.precision,
        "dtype": str(session.stored).removeprefix("torch."),
        **asked,
        "sites": [{"name": s.name, "units": s.units, "uses": getattr(s, "uses", 1)} for s in session.sites],
        "methods": [method.label for method in methods],
        "settings": {method.label: method.settings() for method in methods},
        "splits": splits,
        "notes": list(task.notes),
        "versions": {
            "espalier": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "threads": torch.get_num_threads(),
        },
    }


def check_training(
    folder: Path, rows: Sequence[MeasuredRow], methods: Sequence[Method], now: Recovery | None
) -> dict[str, Any] | None:
    """Return the training to record; raise if rows of the run that it would add to were trained otherwise."""
    before = (read_manifest(folder).get("training") if (folder / RUN).exists() else None) or {}
    if now is None:
        return before or None
    asked = now.settings() | now.gradual_settings()
    gradual = {name: asked.pop(name) for name in now.gradual_settings()}
    if any(row.phase != ONE_SHOT for row in rows):
        _check_equal(folder, {name: before.get(name) for name in asked}, asked)
    if not any(now.gradual(method) for method in methods):  # a recovery follows no schedule
        return {**dict.fromkeys(gradual), **before, **asked}
    for row in rows:
        if row.phase == GRADUAL:
            _check_equal(folder, {name: getattr(row, name) for name in gradual}, gradual)
    return {**before, **asked, **gradual}


def _check_equal(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if before != now:
        differ = differences(dict(before), dict(now))
        raise ConflictError(
            f"{folder} holds rows of another training ({differ}). Choose another folder", folder, differ
        )


def warn_about_base(session: Session, rows: Iterable[Mapping[str, Any]]) -> None:
    """Warn if the unpruned model has learned nothing: its curves would mean nothing."""
    base = next(r for r in rows if r["method"] == BASE and r["split"] == VALIDATION)
    truth = session.truth(VALIDATION)
    check_numbering(session.task, session.model, truth, unpack(base["predictions"]))
    warning = check_above_majority(truth, base["metrics"].get("accuracy"))
    if warning:
        log.warning("%s: %s", session.name, warning)


def check_same_model(session: Session, folder: Path) -> None:
    """Raise unless a run was made with these weights, and of the same target."""
    found = read_record(folder)
    if found.fingerprint != session.fingerprint:
        raise ConflictError(f"the run {folder} was made with other weights than {session.name} has", folder)
    if found.target != session.target:
        raise ConflictError(f"the run {folder} is of {found.target}, `target` is {session.target}", folder)


def same_splits(session: Session, folder: Path) -> set[str]:
    """Return the splits that a run measured on the same examples and in the same way."""
    found = read_record(folder)
    if (found.max_length, found.precision) != (session.max_length, session.precision):
        return set()
    ours = {split: getattr(session.task, split).fingerprint() for split in (VALIDATION, TEST)}
    return {x for x, split in found.splits.items() if x in ours and split.fingerprint == ours[x]}
