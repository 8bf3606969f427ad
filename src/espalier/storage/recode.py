"""Encode the folder of a model to a sparse one, and decode it.

Files are converted to files and no model is loaded, so no tensor is converted, initialised or dropped.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from ..core.errors import FolderError, UnsupportedError
from ..core.mask import Plan
from ..core.terminal import log
from ..core.types import PreTrainedModel
from ..io.files import edit_config
from ..io.output import write_folder
from ..io.paths import (
    CONFIG,
    MANIFEST,
    MODELING,
    PLAN,
    SPARSE_WEIGHTS,
    TRAINING_RECORD,
    TRAINING_STATE_FOLDER,
    WEIGHTS,
    WEIGHTS_INDEX,
)
from ..io.safetensors_file import SafetensorsFile
from .encodings.source import NAMES
from .hook import write_code
from .int8 import FLOATS
from .remote_code import modeling_code
from .resolve import config_of, model_class, outline, read_shards
from .save import summarize_dtypes
from .sparse_file import StoredTensor, decode_file
from .sparse_folder import write_sparse

# files of weights, ours or those of another library: a copy of them would not be encoded
HEAVY = (".safetensors", ".bin", ".h5", ".msgpack", ".onnx", ".pt", ".pth", ".ckpt", ".gguf", ".ot")


def encode_folder(
    source: str | Path, target: str | Path, *, int8: bool = False, overwrite: bool = False
) -> list[StoredTensor]:
    """Write a model without its zeros, with the other files of its folder. Loading it needs espalier."""
    source = _check_apart(source, target)
    files = weight_files(source)
    if files[0].name == SPARSE_WEIGHTS:
        raise FolderError(f"{source} is already encoded; decode it first", source)
    architectures = config_of(str(source), allow_type=False).architectures
    if model_class(architectures) is None:
        raise UnsupportedError(
            f"{source} has the class {architectures!r}, which transformers does not have. Encode its weight "
            f"file instead: {files[0]}"
        )
    model = outline(str(source))
    output = f"encode of {source.resolve().name}"
    with write_folder(target, output, overwrite=overwrite) as place:
        _copy_others(source, place, training_record=not int8)
        stored = write_sparse(model, files, place, int8=int8)
        if not (place / PLAN).is_file():
            Plan({}, {}, {}).save(place / PLAN, dtypes=_dtypes(model, files))
        write_code(place, modeling_code)
    return stored


def decode_folder(source: str | Path, target: str | Path, *, overwrite: bool = False) -> list[StoredTensor]:
    """Write an encoded model as a plain one, which does not need espalier unless it was cut."""
    source = _check_apart(source, target)
    file = weight_files(source)[0]
    if file.name != SPARSE_WEIGHTS:
        raise FolderError(f"{source} is not encoded: it has no {SPARSE_WEIGHTS}", source)
    output = f"decode of {source.resolve().name}"
    with write_folder(target, output, overwrite=overwrite) as place:
        _copy_others(source, place, training_record=True)
        stored = decode_file(file, place / WEIGHTS)
        with edit_config(place / CONFIG) as config:
            record = config["quantization_config"]
            record.pop("sparse", None)
            if not record["plan"]["keep"]:  # never cut: it becomes a usual folder
                del config["quantization_config"]
                for name in ("auto_map", "transformers_weights"):
                    config.pop(name, None)
            elif (source / MODELING).is_file():
                shutil.copy2(source / MODELING, place)
        return stored


def weight_files(folder: Path) -> list[Path]:
    """Return the files that transformers loads a model from: one sparse file or any number of plain ones."""
    if not (folder / CONFIG).is_file():
        raise FolderError(f"the folder {folder} holds no model: it has no {CONFIG}", folder)
    index = folder / WEIGHTS_INDEX
    names = read_shards(index) if index.is_file() else [SPARSE_WEIGHTS, WEIGHTS]
    found = [folder / name for name in names if index.is_file() or (folder / name).is_file()]
    if not found:
        raise FolderError(f"{folder} has no {WEIGHTS}; other formats of weights are not read", folder)
    for path in (folder / CONFIG, *found):
        if path.exists() and not _belongs(path, folder):
            raise FolderError(f"{path} is a link out of the folder and is not followed", path)
    return found if index.is_file() else found[:1]


def _check_apart(source: str | Path, target: str | Path) -> Path:
    here, there = Path(source).resolve(), Path(target).resolve()
    if here == there or here in there.parents:
        raise FolderError(f"{target} is the model itself, or inside it. Choose another folder", target)
    return Path(source)


def _copy_others(source: Path, place: Path, *, training_record: bool) -> None:
    """Copy the tokenizer, the plan, a README: everything but weights. Warn about what is left out."""
    written = {MANIFEST, MODELING, WEIGHTS_INDEX, *(file.name for file in weight_files(source))}
    written |= set() if training_record else {TRAINING_RECORD}
    others, links = [], []
    for item in sorted(set(source.iterdir()) - {source / name for name in written}):
        inside = [item, *(item.rglob("*") if item.is_dir() else ())]
        if item.name == TRAINING_STATE_FOLDER or any(p.suffix in HEAVY for p in inside if p.is_file()):
            others.append(item.name)
        elif not all(_belongs(path, source) for path in inside):
            links.append(item.name)
        else:
            copy = shutil.copytree if item.is_dir() else shutil.copy2
            copy(item, place / item.name)
    if others:
        log.warning("left out, because they are or hold other files of weights: %s", ", ".join(others))
    if links:
        log.warning("left out, because they are or hold links out of the folder: %s", ", ".join(links))


def _belongs(path: Path, folder: Path) -> bool:
    """Return whether a path is a file or folder, and if it is a link, of the same model.

    The cache of the hub keeps a model's files in `blobs`, and links to them in a folder for each revision.
    """
    real, home = path.resolve(), folder.resolve()
    hub = home.parents[1] if home.parent.name == "snapshots" else home
    inside = any(real.is_relative_to(one) for one in (home, hub / "blobs"))
    return inside and (real.is_file() or real.is_dir())


def _dtypes(model: PreTrainedModel, files: list[Path]) -> dict[str, str]:
    """Return {"": the most frequent dtype, and by name every parameter that differs}, from the files."""
    known = {NAMES[dtype]: dtype for dtype in FLOATS}
    entries = [entry for file in files for entry in SafetensorsFile(file).entries.values()]
    found = {entry.name: known[entry.dtype] for entry in entries if entry.dtype in known}
    summary = summarize_dtypes(found or {"": "float32"})
    if summary.keys() <= {"", *dict(model.named_parameters())}:
        return summary
    return {"": next(dtype for dtype in FLOATS if dtype in summary.values())}  # the widest holds all
