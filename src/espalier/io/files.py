"""Files: read with fitting errors, written atomically; JSON objects, and short hashes.

A temporary sibling replaces the target when it is complete and on disk: a killed write leaves the old file or
the new one. `clean` removes the siblings that killed writes left.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..core.errors import EspalierError, FolderError, FormatError
from ..core.strict_json import parse_json
from ..core.terminal import log

if TYPE_CHECKING:
    from torch import nn

TEMPORARY = r"(old\.)?([0-9a-f]{16}\.tmp|[0-9a-f]{8})"  # the second form is that of version 0.1.0


@contextmanager
def reading(path: Path, form: str, *damage: type[Exception]) -> Iterator[None]:
    """Raise FolderError if the file cannot be read, and FormatError if it turns out not to be `form`."""
    damaged: tuple[type[Exception], ...] = (ValueError, RecursionError, *damage)
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


def open_text(path: Path, newline: str | None = None) -> TextIO:
    """Open a text file in UTF-8, gzipped or not."""
    opened: Any = gzip.open if path.name.lower().endswith(".gz") else open
    file: TextIO = opened(path, "rt", encoding="utf-8-sig", newline=newline)
    return file


@contextmanager
def write_file(target: Path) -> Iterator[Path]:
    """Yield a new empty file that replaces the target when the block ends without an error.

    If the target is a link, the link is replaced and not what it points at.
    """
    warn_about_leftovers(target)
    place = temporary_sibling(target)
    try:
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        with locked(place):
            yield place
            sync(place)
            os.replace(place, target)
            sync(target.parent)
    except OSError as error:
        message = f"cannot write {target}: {error.strerror or error}. The previous content is unchanged"
        raise FolderError(message, target) from error
    finally:
        with suppress(OSError):
            place.unlink()


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file as a whole."""
    with write_file(path) as place:
        place.write_bytes(data)


def make_folder(path: Path) -> Path:
    """Make a folder, unless it exists; a link is refused, because files would be written elsewhere."""
    if path.is_symlink():
        raise FolderError(f"{path} is a link to another place and is not written to; remove it", path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"cannot make the folder {path}: {error.strerror or error}", path) from None
    return path


def check_link(path: Path) -> None:
    """Raise if a file is a link out of its folder: what it points at is nobody's business here."""
    if path.is_symlink() and path.resolve().parent != path.parent.resolve():
        raise FolderError(f"{path} is a link to another folder and is not followed; remove it", path)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk, where the system can tell."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        if not is_folder:  # some file systems cannot sync a folder
            raise
        log.debug("%s was not synced: %s", path, error)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step and return True; False where the system or the file system cannot."""
    import ctypes

    rename = (
        getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    )
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if rename is None:
        return False
    if rename(here, os.fsencode(one), here, os.fsencode(other), ctypes.c_uint(swap)) == 0:
        return True
    code = ctypes.get_errno()
    if code not in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        raise OSError(code, os.strerror(code), str(other))
    return False


def temporary_sibling(target: Path, label: str = "") -> Path:
    """Return a new hidden name in the target's folder that cannot be guessed; `label` may be `old.`."""
    return target.with_name(f".{_stem(target)}.{label}{secrets.token_hex(8)}.tmp")


def _stem(target: Path) -> str:
    """Return the target's name, shortened where the file system would refuse a longer one."""
    return os.fsencode(target.name)[:200].decode(errors="ignore")


def leftovers(target: Path) -> list[Path]:
    """List existing temporary siblings of the target, the oldest first."""
    target = target.resolve()
    pattern = re.compile(rf"\.{re.escape(_stem(target))}\.{TEMPORARY}")
    try:
        found = [p for p in target.parent.iterdir() if pattern.fullmatch(p.name)]
        return sorted(found, key=lambda p: p.lstat().st_mtime)
    except OSError:  # no such parent, or deleted meanwhile
        return []


def warn_about_leftovers(target: Path) -> None:
    """Warn about what a killed write left. It is not deleted here: it may be the only copy."""
    for path in leftovers(target):
        if not is_locked(path):
            log.warning("%s was left by a killed write. Remove it: espalier clean %s", path, target)


def clean(folder: str | Path) -> list[Path]:
    """Remove what killed writes left of a folder and in it, and return the paths.

    What a running program is writing stays. If the folder itself is missing, because a write was killed
    between two renames, its previous content is put back.
    """
    target = Path(folder).resolve()
    beside, removed = leftovers(target), []
    old = [path for path in beside if ".old." in path.name]
    if not old and not target.exists():
        raise FolderError(f"no folder {str(folder)!r}, and no write of it was killed", folder)
    try:
        if old and not target.exists():
            os.replace(old[-1], target)
            sync(target.parent)
            removed.append(old.pop())
            beside.remove(removed[0])
        inside = [Path(top, name) for top, below, files in os.walk(target) for name in (*below, *files)]
        pattern = re.compile(r"\..+\.(old\.)?[0-9a-f]{16}\.tmp")
        for path in (*beside, *(p for p in inside if pattern.fullmatch(p.name))):
            if os.path.lexists(path) and not is_locked(path):
                remove = shutil.rmtree if path.is_dir() and not path.is_symlink() else Path.unlink
                remove(path)
                removed.append(path)
    except OSError as error:
        raise FolderError(f"cannot clean {folder}: {error.strerror or error}", folder) from None
    return removed


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on an existing file or folder, where the system can; a killed process holds none."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    file = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(file)


def is_locked(path: Path) -> bool:
    """Return whether a running program holds a lock on a file or folder."""
    try:
        import fcntl

        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in the file."""
    with reading(path, "a JSON object"):
        value = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError(f"it holds a {type(value).__name__}")
        return value


def write_json(path: Path, value: Any) -> None:
    """Write a value that JSON can hold; NaN and infinity are refused."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_bytes(path, text.encode())


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
