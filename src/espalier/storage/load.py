"""Load models that `save` wrote, after checking everything in the folder that can be checked beforehand."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import torch

from ..core.errors import FolderError, FormatError, UnsupportedError
from ..core.mask import Plan
from ..core.types import PreTrainedModel
from ..io.files import leftovers, read_json, reading
from ..io.paths import CONFIG, PLAN
from ..pruning import skeleton
from .int8 import FLOATS
from .remote_code import connect
from .resolve import check_size, check_weights, model_class


def load(folder: str | Path, *, cls: type[PreTrainedModel] | None = None, **options: Any) -> PreTrainedModel:
    """Return the model that was saved: the same class, the same dtypes, bit for bit the same outputs.

    The unpruned model is never allocated. `options` go to `from_pretrained` (device_map, dtype, …);
    `cls` is needed only for a class that transformers does not have.
    """
    folder = Path(folder)
    dtypes, config = _read(folder)
    cls = cls or model_class(config.get("architectures"))
    if cls is None:
        raise UnsupportedError(
            f"{folder} was saved from {config.get('architectures')!r}, which transformers does not have. "
            "Give the class: load(folder, cls=MyModel)"
        )
    connect()
    if model_class(config.get("architectures")) is not None:
        check_size(folder)
    mixed = len(set(dtypes.values())) > 1 and not {"dtype", "torch_dtype"} & set(options)
    if mixed:  # load all in one dtype that holds each exactly, then convert each
        options["dtype"] = reduce(torch.promote_types, {getattr(torch, d) for d in dtypes.values()})
    model = _from_pretrained(cls, folder, options)
    if mixed:
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.to(getattr(torch, dtypes.get(name, dtypes[""])))
    return model


def _read(folder: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Return (dtypes, config), checked as far as possible without the model."""
    if not folder.is_dir():
        old = [p for p in leftovers(folder) if ".old." in p.name]
        hint = f". A save was killed while replacing it; rename {old[-1]}" if old else ""
        raise FolderError(f"no folder {str(folder)!r}{hint}", old[-1] if old else folder)
    has_plan, has_config = (folder / PLAN).is_file(), (folder / CONFIG).is_file()
    config = read_json(folder / CONFIG) if has_plan or has_config else {}
    record = config.get("quantization_config")
    if not has_plan and not skeleton.is_ours(record):
        hint = "AutoModel.from_pretrained reads it" if config else "it holds no model at all"
        raise FolderError(f"{folder} was not written by espalier.save: it has no {PLAN}; {hint}", folder)
    if record is not None:
        with reading(folder / CONFIG, "a config of a cut model"):
            skeleton.check(record)
            Plan.from_dict(record.get("plan"))
    dtypes = {"": "float32"}
    if has_plan:  # a folder of save_pretrained, as Trainer writes it, has only the config
        keep = Plan.load(folder / PLAN).to_dict()["keep"]
        if keep != (record or {}).get("plan", {}).get("keep", {}):
            raise FormatError(f"{folder}: {PLAN} and {CONFIG} describe different cuts", folder / PLAN)
        dtypes = read_json(folder / PLAN).get("dtypes") or dtypes
        if not isinstance(dtypes, dict) or "" not in dtypes or not set(dtypes.values()) <= set(FLOATS):
            raise FormatError(f"{folder / PLAN} is damaged: see its dtypes", folder / PLAN)
    check_weights(folder)
    return dtypes, config


def _from_pretrained(cls: type[PreTrainedModel], folder: Path, options: dict[str, Any]) -> PreTrainedModel:
    options = {**options, "output_loading_info": True, "local_files_only": True, "use_safetensors": True}
    try:
        model, info = cls.from_pretrained(folder, **options)
    except Exception as error:  # a damaged folder can be wrong in more ways than there are types
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise FormatError(f"cannot load {folder}: {first[0]}", folder) from error
    for problem in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if names := sorted(str(key) for key in info.get(problem) or ()):
            seen = f"{len(names)} {problem.replace('_', ' ')}, the first {names[0]}"
            raise FormatError(f"{folder}: the weights do not fit the plan: {seen}", folder)
    return model
