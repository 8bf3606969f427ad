"""Sparse files as outcomes: what encoding a file or a model gained, encoding by encoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.errors import FolderError
from ..experiment.verb import verb
from ..io.paths import CONFIG, WEIGHTS
from ..storage.recode import decode_folder, encode_folder, weight_files
from ..storage.sparse_file import StoredTensor, decode_file, encode_files
from .outcome import Outcome
from .tables import Table


@verb
def encode(source: str | Path, folder: str | Path, *, int8: bool = False, overwrite: bool = False) -> Outcome:
    """Write the tensors of a file or a model without their zeros."""
    source, target, before = _check(source, folder)
    if not source.is_dir() and target.name == WEIGHTS and (target.parent / CONFIG).is_file():
        raise FolderError(
            f"{target} is what its folder is loaded from; encode the whole folder instead", target
        )
    if source.is_dir():
        stored = encode_folder(source, target, int8=int8, overwrite=overwrite)
    else:
        stored = encode_files([source], target, int8=int8, overwrite=overwrite)
    found = _outcome(stored, source, target, before, gained=True)
    negative = sum(one.negative_zeros for one in stored)
    if negative * 1000 > before:  # fewer come from rounding and do not matter
        advice = (
            "If they come from multiplying by a mask, make them zeros: weight.masked_fill_(weight == 0, 0)"
        )
        found.notes.append(f"{negative} values are −0.0 and kept bit for bit. {advice}")
    elif _size(target) >= 0.999 * before:
        found.notes.append("It has hardly any zeros, so encoding gains nothing.")
    return found


@verb
def decode(source: str | Path, folder: str | Path, *, overwrite: bool = False) -> Outcome:
    """Write an encoded file or model as a plain one."""
    source, target, before = _check(source, folder)
    run = decode_folder if source.is_dir() else decode_file
    stored = run(source, target, overwrite=overwrite)
    found = _outcome(stored, source, target, before, gained=False)
    if any("int8" in one.encoding for one in stored):
        found.notes.append("What was stored in 8 bits stays rounded.")
    return found


def _check(source: str | Path, target: str | Path) -> tuple[Path, Path, int]:
    """Return both paths and the size of the first; raise if a model would become a file."""
    source, target = Path(source), Path(target)
    if source.is_dir() and target.suffix == ".safetensors":
        raise FolderError(f"{source} is a model, which becomes a folder: name a folder, not {target}", target)
    return source, target, _size(source)


def _size(place: Path) -> int:
    files = weight_files(place) if place.is_dir() else [place]
    return sum(file.stat().st_size for file in files if file.is_file())


def _outcome(
    stored: Sequence[StoredTensor], source: Path, target: Path, before: int, *, gained: bool
) -> Outcome:
    after = _size(target)
    names = sorted({one.encoding for one in stored}, key=lambda name: (name == "plain", name))
    rows = [_row(name, [one for one in stored if one.encoding == name], gained) for name in names]
    facts: dict[str, Any] = {"tensors": len(stored), "before": before, "after": after}
    caption = f"{target}: {after} bytes, {source}: {before}"
    if gained:
        facts["bound"] = round(sum(one.bound for one in stored))
        caption += f", {before / max(after, 1):.2f} to one"
    shown = [{k: str(v) for k, v in row.items()} for row in (*rows, _row("all", stored, gained))]
    return Outcome({**facts, "encodings": rows}, [Table(shown, caption=caption)], folder=target)


def _row(name: str, stored: Sequence[StoredTensor], gained: bool) -> dict[str, Any]:
    before, after = sum(one.before for one in stored), sum(one.after for one in stored)
    row = {"encoding": name, "tensors": len(stored), "bytes before": before, "bytes after": after}
    if not gained:
        return row
    bound = round(sum(one.bound for one in stored))
    return {**row, "ratio": round(before / max(after, 1), 2), "information bound": bound}
