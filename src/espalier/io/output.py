"""Output folders: written as a whole or not at all, and only over what was written as the same output.

Every writer of a model's folder goes through `write_folder`. A manifest in the folder says which output it
is, "prune of tuned" for instance, and lists the files. A model that has no manifest, that is another output,
or whose files were changed since, is replaced only with `overwrite`. All other files stay in any case.
"""

from __future__ import annotations

import filecmp
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core.errors import FolderError
from ..core.terminal import log
from .files import (
    digest,
    exchange,
    locked,
    sync,
    temporary_sibling,
    warn_about_leftovers,
    write_file,
    write_json,
)
from .paths import (
    CARD,
    CONFIG,
    EXPORT_RECORD,
    EXPORTED,
    MANIFEST,
    MODELING,
    MODULE_SETTINGS,
    MODULES,
    PLAN,
    SPARSE_WEIGHTS,
    TRAINING_RECORD,
    TRAINING_STATE_FOLDER,
)

# Weights, and what describes them. Of an earlier model none of these may be left beside a new one.
DESCRIPTIONS = (CONFIG, MODELING, PLAN, SPARSE_WEIGHTS, TRAINING_RECORD, EXPORT_RECORD)
NAMES = "|".join(map(re.escape, (*DESCRIPTIONS, *EXPORTED.values())))
ABOUT = (MODULES, *MODULE_SETTINGS)  # how sentence-transformers pools what the model gives
MODEL_FILES = re.compile(rf"(pytorch_)?model(-\d.*)?\.(safetensors|bin)(\.index\.json)?|{NAMES}")


@contextmanager
def write_folder(folder: str | Path, output: str, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that replaces the target when the block ends without an error.

    `output` says what is written; it is compared with what the target holds, see `check_replaceable`. Of the
    target only the model is replaced: other files are kept.
    """
    target = Path(folder).resolve()
    check_replaceable(folder, output, overwrite=overwrite)
    warn_about_leftovers(target)
    place, old = temporary_sibling(target), temporary_sibling(target, "old.")
    held = _read_manifest(target).get("output") or ("a model of others" if _is_model(target) else "")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir()
        with locked(place):
            yield place
            if target.is_dir():
                _check_others(folder, target, place, overwrite)
            _write_manifest(place, output)
            if target.is_dir():
                _keep_others(target, place, _read_manifest(target))
            for path in (*place.rglob("*"), place):
                if not path.is_symlink():
                    sync(path)
            _move(place, target, old)
        if held:
            log.info("replaced what %s held: %s", folder, held)
    except Exception as error:
        cause = error.__cause__ if isinstance(error, FolderError) else error
        # safetensors and tokenizers have errors of their own for what the system refuses
        system = "(os error " in str(cause) or "SafetensorError" in type(cause).__name__
        if not isinstance(cause, OSError) and not system:
            raise
        reason = getattr(cause, "strerror", None) or str(cause)
        kept = f"was moved to {old}; rename it" if old.exists() else "is unchanged"
        message = f"cannot write {folder}: {reason}. The previous content {kept}"
        raise FolderError(message, old if old.exists() else folder) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if target.exists():  # otherwise `old` is the only copy
            shutil.rmtree(old, ignore_errors=True)


def add_file(folder: Path, name: str, text: str, *, overwrite: bool = False) -> bool:
    """Write a text beside the model in an output folder; return whether it was written.

    A file of this name that was not written by espalier, or was changed since, stays, unless `overwrite`.
    The text holds its own digest in a comment, so that a copy of the folder is recognised too.
    """
    file = folder / name
    if os.path.lexists(file) and not overwrite and not _is_ours(file, _read_manifest(folder)):
        log.warning("%s was not written by espalier and stays; replace it with `overwrite`", file)
        return False
    with write_file(file) as place:
        place.write_text(f"{text}\n<!-- espalier {digest(text.encode())} -->\n", encoding="utf-8")
    manifest = _read_manifest(folder)
    if manifest:
        manifest["files"][name] = _stamp(file)
        write_json(folder / MANIFEST, manifest)
    return True


def _is_ours(file: Path, manifest: dict[str, Any]) -> bool:
    if not _changed(file, manifest):
        return True
    try:
        text, found, mark = file.read_text(encoding="utf-8").rpartition("\n<!-- espalier ")
    except (OSError, ValueError):
        return False
    return bool(found) and mark == f"{digest(text.encode())} -->\n"


def check_replaceable(folder: str | Path, output: str, *, overwrite: bool = False) -> None:
    """Raise unless the folder is missing or empty, or holds a model that may be replaced by this output."""
    target = Path(folder).resolve()
    if target.exists() and not target.is_dir():
        raise FolderError(f"{folder} is a file; give the name of a folder", folder)
    if not target.is_dir() or not any(target.iterdir()):
        return
    if target in (Path.cwd(), *Path.cwd().parents):
        raise FolderError(f"{folder} is the current folder or above it; choose a folder below it", folder)
    if (target / TRAINING_STATE_FOLDER).exists():
        raise FolderError(f"{folder} holds an unfinished training; choose another folder", folder)
    manifest, is_model = _read_manifest(target), _is_model(target)
    if not manifest and not is_model:
        inside = sorted(path.parent.name for path in target.glob(f"*/{CONFIG}"))
        what = f"folders of models ({', '.join(inside)})" if inside else "something that is not a model"
        raise FolderError(f"{folder} holds {what} and is not written to; choose another folder", folder)
    foreign = [p.name for p in target.iterdir() if MODEL_FILES.fullmatch(p.name) and _changed(p, manifest)]
    if overwrite:
        log.warning("the model in %s is overwritten; other files there are kept", folder)
        return
    advice = "Choose another folder, or replace that model with `overwrite`"
    if not manifest:
        raise FolderError(f"{folder} holds a model that espalier did not write. {advice}", folder)
    if manifest.get("output") != output:
        held = f"another output of espalier ({manifest.get('output')}, and this is {output})"
        raise FolderError(f"{folder} holds {held}. {advice}", folder)
    if foreign:
        raise FolderError(f"{folder / Path(min(foreign))} was changed or added by others. {advice}", folder)


def _write_manifest(place: Path, output: str) -> None:
    files = [path for path in sorted(place.rglob("*")) if path.is_file()]
    stamps = {path.relative_to(place).as_posix(): _stamp(path) for path in files}
    write_json(place / MANIFEST, {"version": 1, "output": output, "files": stamps})


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest, empty if there is none that can be read: nothing is then taken for ours."""
    try:
        raw = json.loads((folder / MANIFEST).read_bytes())
        return raw if isinstance(raw["files"], dict) else {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def _stamp(path: Path) -> list[int]:
    found = path.lstat()
    return [found.st_size, found.st_mtime_ns]


def _changed(path: Path, manifest: dict[str, Any], name: str = "") -> bool:
    """Return whether a file is not, or no longer, the one that was written."""
    return bool(manifest.get("files", {}).get(name or path.name) != _stamp(path))


def _is_model(folder: Path) -> bool:
    try:
        return "model_type" in json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def _check_others(folder: str | Path, target: Path, place: Path, overwrite: bool) -> None:
    """Raise if the new output has a file of a name under which the target has one of the user's."""
    manifest = _read_manifest(target)
    for new in (path for path in place.rglob("*") if path.is_file() and not overwrite):
        name = new.relative_to(place).as_posix()
        old = target / name
        if os.path.lexists(old) and _changed(old, manifest, name) and not _same(old, new):
            advice = "Move it, choose another folder, or replace it with `overwrite`"
            raise FolderError(f"{Path(folder) / name} was not written by espalier. {advice}", folder)


def _same(old: Path, new: Path) -> bool:
    return old.is_file() and not old.is_symlink() and filecmp.cmp(old, new, shallow=False)


def _keep_others(old: Path, new: Path, manifest: dict[str, Any], below: str = "") -> None:
    """Link or copy what the new output does not write (a tokenizer, notes) into it, but no earlier model.

    Nor what espalier wrote about an earlier model. `below` is the folder's place in the output.
    """
    for item in old.iterdir():
        kept, name = new / item.name, below + item.name
        if item.is_dir() and not item.is_symlink():
            if not any(item.iterdir()):
                kept.mkdir(parents=True, exist_ok=True)
            _keep_others(item, kept, manifest, f"{name}/")
        elif not os.path.lexists(kept) and not _describes(item, manifest, name):
            kept.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(item, kept, follow_symlinks=False)
            except OSError:  # a file system without hard links
                shutil.copy2(item, kept, follow_symlinks=False)


def _describes(file: Path, manifest: dict[str, Any], name: str) -> bool:
    """Return whether a file is part of an earlier model, or was written about it: its card, its pooling."""
    if name == CARD:
        return _is_ours(file, manifest)
    about = name in ABOUT or "/" in name  # folders of an output are those of its modules
    return bool(MODEL_FILES.fullmatch(name)) or (about and not _changed(file, manifest, name))


def _move(place: Path, target: Path, old: Path) -> None:
    """Give the new folder the name of the target, in one step where the system can; `place` is then the old.

    Elsewhere these are two renames, and an interrupt between them restores the old folder.
    """
    if not target.exists() or not exchange(place, target):
        try:
            if target.exists():
                os.replace(target, old)
            os.replace(place, target)
        except BaseException:
            if old.exists() and not target.exists():
                os.replace(old, target)
            raise
    sync(target.parent)
