"""A model's folder written again: its zeros encoded away, or put back.

Files become files and no model is loaded, so no tensor is converted, made up or left out on the way.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from ..core.errors import EspalierError
from ..core.log import log
from ..core.plan import Plan
from ..io.atomic import MODELLING, PLAN, RECORD, STATES, writing
from ..io.safetensors_file import SafeFile
from ..pruning.skeleton import SPARSE
from .encodings.about import NAMES
from .resolve import config_of, model_class, outline
from .save import DTYPES, described, write_modelling
from .sparse_file import Count
from .sparse_folder import write_plain, write_sparse

PLAIN, INDEX = "model.safetensors", "model.safetensors.index.json"
# what holds weights, ours or those of another library: such a copy of them would not have been encoded
HEAVY = (".safetensors", ".bin", ".h5", ".msgpack", ".onnx", ".pt", ".pth", ".ckpt", ".gguf", ".ot")


def encode_folder(source: str | Path, target: str | Path, *, int8: bool = False) -> list[Count]:
    """Write a model without its zeros, with all that lies beside its weights. It needs espalier to load."""
    source = _apart(source, target)
    files = weight_files(source)
    if files[0].name == SPARSE:
        raise EspalierError(f"{source} is encoded already. Type: espalier decode {source} -o PLAIN")
    architectures = config_of(str(source), types=False).architectures
    if model_class(architectures) is None:
        raise EspalierError(
            f"{source} is of the class {architectures!r}, which transformers does not have. Encode its file: "
            f"espalier encode {files[0]} -o FILE"
        )
    model = outline(str(source))
    with writing(target, carry=False) as place:
        _copy_beside(source, place, record=not int8)
        counts = write_sparse(model, files, place, int8=int8)
        if not (place / PLAN).is_file():
            Plan({}, {}, {}).save(place / PLAN, dtypes=_dtypes(model, files))
        write_modelling(model, place)
    return counts


def decode_folder(source: str | Path, target: str | Path) -> list[Count]:
    """Write an encoded model as a plain one, which needs no espalier unless it was cut."""
    source = _apart(source, target)
    (file, *_) = weight_files(source)
    if file.name != SPARSE:
        raise EspalierError(f"{source} is not encoded: it has no {SPARSE}")
    with writing(target, carry=False) as place:
        _copy_beside(source, place, record=True)
        if (source / MODELLING).is_file():
            shutil.copy2(source / MODELLING, place)
        return write_plain(file, place)


def _apart(source: str | Path, target: str | Path) -> Path:
    here, there = Path(source).resolve(), Path(target).resolve()
    if here == there or here in there.parents:
        raise EspalierError(f"{target} is the model itself, or inside it. Choose another folder")
    return Path(source)


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers would load a model from, one sparse or any number of plain ones."""
    if not (folder / "config.json").is_file():
        raise EspalierError(f"the folder {folder} has no config.json, so it holds no model")
    if (folder / INDEX).is_file():
        try:
            shards = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
            found = [folder / Path(str(name)).name for name in sorted(shards)]
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise EspalierError(f"{folder / INDEX} is damaged: {error}") from None
    else:
        found = [folder / name for name in (SPARSE, PLAIN) if (folder / name).is_file()][:1]
    if not found:
        raise EspalierError(f"{folder} has no {PLAIN}; other kinds of weights are not read")
    return found


def _copy_beside(source: Path, place: Path, *, record: bool) -> None:
    """The tokenizer, the plan, a README: all but weights. What else is left out is said."""
    written = {MODELLING, INDEX, *(() if record else (RECORD,))}
    known, others = {file.name for file in weight_files(source)}, []
    for item in sorted(source.iterdir()):
        if item.name in written | known:
            continue
        inside = [item] if item.is_file() else [p for p in item.rglob("*") if p.is_file()]
        if item.name == STATES or any(p.suffix in HEAVY for p in inside):
            others.append(item.name)
        elif item.is_file():
            shutil.copy2(item, place / item.name)
        else:
            shutil.copytree(item, place / item.name)
    if others:
        log.warning("left out, for they are or hold other files of weights: %s", ", ".join(others))


def _dtypes(model: Any, files: list[Path]) -> dict[str, str]:
    """{"": the usual one, and by name every parameter that differs}, as the files have them."""
    known = {NAMES[dtype]: dtype for dtype in DTYPES}
    entries = [entry for file in files for entry in SafeFile(file).entries.values()]
    found = {entry.name: known[entry.dtype] for entry in entries if entry.dtype in known}
    told = described(found or {"": "float32"})
    if told.keys() <= {"", *dict(model.named_parameters())}:
        return told
    widest = next(kind for kind in DTYPES if kind in told.values())  # named otherwise: it holds all
    return {"": widest}
