"""What sentence-transformers keeps beside a model: the list of its modules, pooling and normalisation."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..core.errors import FormatError
from ..core.strict_json import parse_json
from ..io.files import reading
from ..io.paths import MODULES

SETTINGS = ("config_sentence_transformers.json", "sentence_bert_config.json")
LARGEST = 64 * 2**20  # bytes of a file that is copied: a dense layer at most


def copy_modules(source: Path, place: Path) -> list[str]:
    """Copy the modules that follow the model, and their settings; return the names of what was copied.

    Only folders inside the source that its list names are copied, and no links.
    """
    listed = source / MODULES
    if not listed.is_file():
        return []
    with reading(listed, "a list of modules", Exception):
        paths = [str(one["path"]) for one in parse_json(listed.read_text(encoding="utf-8"))]
    if any(Path(path).name != path or path == ".." for path in paths):
        raise FormatError(f"{listed} is damaged: the path of a module is a folder beside it", listed)
    copied = []
    for name in (MODULES, *SETTINGS, *filter(None, paths)):
        for file in _files(source / name):
            target = place / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
            copied.append(file.relative_to(source).as_posix())
    return copied


def _files(path: Path) -> list[Path]:
    found = [path] if path.is_file() else sorted(path.glob("*")) if path.is_dir() else []
    if path.is_symlink():
        return []
    return [f for f in found if f.is_file() and not f.is_symlink() and f.stat().st_size <= LARGEST]
