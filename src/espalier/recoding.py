"""A model folder written again: its zeros encoded away, or put back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .core import Plan
from .errors import EspalierError
from .placing import PLAN
from .skeleton import SPARSE
from .sources import config_of, model_class
from .store import load, save


def encode_folder(source: str | Path, target: str | Path, *, int8: bool = False) -> None:
    """Write a model without its zeros, with all that lies beside it. It loads as before, with espalier."""
    if (Path(source) / SPARSE).is_file() and not int8:
        raise EspalierError(f"{source} is encoded already. Type: espalier decode {source} -o PLAIN")
    _again(Path(source), Path(target), sparse="int8" if int8 else True)


def decode_folder(source: str | Path, target: str | Path) -> None:
    """Write an encoded model as a plain one, which needs no espalier unless it was cut."""
    if not (Path(source) / SPARSE).is_file():
        raise EspalierError(f"{source} is not encoded: it has no {SPARSE}")
    _again(Path(source), Path(target), sparse=False)


def weight_bytes(folder: str | Path) -> int:
    return sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))


def _again(source: Path, target: Path, *, sparse: bool | str) -> None:
    if source.resolve() == target.resolve():
        raise EspalierError(f"{target} is the model itself. Choose another folder with -o")
    plan = source / PLAN
    origin = Plan.load(plan).origin if plan.is_file() else None
    save(_opened(source), target, like=source, origin=origin, sparse=sparse)


def _opened(folder: Path) -> Any:
    if (folder / PLAN).is_file():
        return load(folder)
    config = config_of(str(folder), types=False)
    cls = model_class(config.architectures)
    if cls is None:
        raise EspalierError(
            f"{folder} is of the class {config.architectures!r}, which transformers does not have. Encode "
            f"its file: espalier encode {folder}/model.safetensors -o FILE"
        )
    try:
        return cls.from_pretrained(folder, dtype="auto", use_safetensors=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise EspalierError(f"cannot load {folder}: {str(error).splitlines()[0]}") from error
