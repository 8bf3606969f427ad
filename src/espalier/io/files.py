"""Files and folders: read with fitting errors, written atomically; JSON objects, and short hashes.

A temporary sibling replaces the target when it is complete: a killed write leaves the old or the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..core.errors import EspalierError, FolderError, FormatError
from ..core.log import log
from .paths import CONFIG, MODELING, PLAN, SPARSE_WEIGHTS, TRAINING_RECORD

if TYPE_CHECKING:
    from torch import nn

WEIGHT_FILES = rf"(pytorch_)?model(-\d.*)?\.(safetensors|bin)(\.index\.json)?|{re.escape(SPARSE_WEIGHTS)}"


@contextmanager
def reading(path: Path, form: str, *damage: type[Exception]) -> Iterator[None]:
    """Raise FolderError if the file cannot be read, and FormatError if it turns out not to be `form`."""
    damaged: tuple[type[Exception], ...] = (ValueError, *damage)
    try:
        yield
    except FormatError as error:
        raise error if error.path else FormatError(f"{path}: {error}", path) from None
    except EspalierError:
        raise
    except OSError as error:
        raise FolderError(f"cannot read {path}: {error.strerror or error}", path) from None
    except damaged as error:
        raise FormatError(f"{path} is not {form}: {error or type(error).__name__}", path) from None


@contextmanager
def write_folder(folder: str | Path, *, keep_others: bool = True) -> Iterator[Path]:
    """Yield a temporary folder that replaces the target when the block ends without an error.

    Files of the target that were not written again are kept, except weights and what describes them;
    with `keep_others` False none is kept.
    """
    target = Path(folder).resolve()
    check_replaceable(folder)
    warn_about_leftovers(target)
    place, old = temporary_sibling(target), temporary_sibling(target, "old.")
    try:
        place.mkdir(parents=True)
        yield place
        if keep_others:
            _copy_others(target, place)
        _exchange(place, target, old)
    except Exception as error:
        full_disk = "No space left" in str(error) or "SafetensorError" in type(error).__name__
        if not isinstance(error, OSError) and not full_disk:
            raise
        reason = getattr(error, "strerror", None) or str(error)
        kept = f"was moved to {old}; rename it" if old.exists() else "is unchanged"
        message = f"cannot write {folder}: {reason}. The previous content {kept}"
        raise FolderError(message, old if old.exists() else folder) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if target.exists():  # otherwise `old` is the only copy
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def write_file(target: Path) -> Iterator[Path]:
    """Yield a temporary file name that replaces the target when the block ends without an error."""
    warn_about_leftovers(target)
    place = temporary_sibling(target)
    try:
        yield place
        os.replace(place, target)
    except OSError as error:
        message = f"cannot write {target}: {error.strerror or error}. The previous content is unchanged"
        raise FolderError(message, target) from error
    finally:
        place.unlink(missing_ok=True)


def check_replaceable(folder: str | Path) -> None:
    """Raise unless the folder is missing, empty, or a saved model without subfolders."""
    target = Path(folder).resolve()
    if target.exists() and not target.is_dir():
        raise FolderError(f"{folder} is a file; give the name of a folder", folder)
    if not target.is_dir() or not any(target.iterdir()):
        return
    if target in (Path.cwd(), *Path.cwd().parents):
        raise FolderError(f"{folder} is the current folder or above it; choose a folder below it", folder)
    subfolders = sorted(p.name for p in target.iterdir() if p.is_dir())
    if subfolders or not _is_model(target):
        content = f"the folder {subfolders[0]}" if subfolders else "something that is not a model"
        raise FolderError(f"{folder} holds {content} and is not replaced; choose another folder", folder)


def temporary_sibling(target: Path, label: str = "") -> Path:
    """Return a new hidden name in the target's folder; `label` describes its content."""
    return target.with_name(f".{target.name}.{label}{uuid4().hex[:8]}")


def leftovers(target: Path) -> list[Path]:
    """List existing temporary siblings of the target, the oldest first."""
    target = target.resolve()
    pattern = re.compile(rf"\.{re.escape(target.name)}\.(old\.)?[0-9a-f]{{8}}")
    try:
        found = [p for p in target.parent.iterdir() if pattern.fullmatch(p.name)]
        return sorted(found, key=lambda p: p.lstat().st_mtime)
    except OSError:  # no such parent, or deleted meanwhile
        return []


def warn_about_leftovers(target: Path) -> None:
    """Warn about what a killed write left. It is never deleted: it may be the only copy."""
    for path in leftovers(target):
        log.warning("%s was left by a killed write, unless another program is writing now. Delete it", path)


def _exchange(place: Path, target: Path, old: Path) -> None:
    """Rename the new folder to the target. An interrupt between the two renames restores the old one."""
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
        return "model_type" in json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def _copy_others(old: Path, new: Path) -> None:
    """Copy what the earlier save had and this one does not write (a tokenizer, a README), but no weights."""
    for file in old.iterdir() if old.is_dir() else ():
        replaced = file.name in (PLAN, MODELING, TRAINING_RECORD) or re.fullmatch(WEIGHT_FILES, file.name)
        if not replaced and not (new / file.name).exists():
            shutil.copy2(file, new / file.name)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in the file."""
    with reading(path, "a JSON object"):
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError(f"it holds a {type(value).__name__}")
        return value


def write_json(path: Path, value: Any) -> None:
    """Write a value that JSON can hold; NaN and infinity are refused."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    with write_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def edit_config(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the object in a config file and write it back, in the style of transformers."""
    value = read_json(path)
    yield value
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def fingerprint_weights(model: nn.Module) -> str:
    """Return a hash over the names and values of the state dict."""
    import torch

    found = hashlib.blake2b(digest_size=8)
    for name, value in model.state_dict().items():
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()


def digest(data: bytes) -> str:
    """Return a short hash of the content of a file or a text."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()
