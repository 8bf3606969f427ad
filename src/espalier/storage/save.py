"""Saving and loading cut models. Safetensors and JSON, nothing that runs by itself.

A folder holds the weights, `config.json` with the skeleton in it, `plan.json` for people and for later
cuts, and a copy of skeleton.py for machines without espalier.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..core.errors import EspalierError
from ..core.plan import Plan
from ..io.atomic import MODELLING, PLAN, writing
from ..io.leftovers import leftovers
from ..pruning import skeleton
from ..pruning.cut import plan_of, record_of
from .resolve import model_class
from .sparse_folder import make_sparse

DTYPES = ("float64", "float32", "bfloat16", "float16")


def save(
    model: Any,
    folder: str | Path,
    *,
    tokenizer: Any = None,
    origin: Mapping[str, Any] | None = None,
    max_shard_size: str | int = "5GB",
    sparse: bool | str = False,
) -> Path:
    """Write a model so that `load` gives it back bit for bit, with or without a cut.

    `sparse=True` encodes the zeros away, into one file; `sparse="int8"` also stores the matrices of the
    blocks in eight bits, which is lossy. Both need espalier to load.
    It is written beside the folder and then put in its place, so a failed save leaves what was there. Saving
    over an older save keeps the files that this one does not write, such as a tokenizer.
    """
    if sparse not in (True, False, "int8"):
        raise EspalierError(f"sparse is True, False or 'int8', not {sparse!r}")
    check_whole(model)
    plan, record = plan_of(model), record_of(model)
    about = {**plan.origin, **(origin or {}), **_about(model)}
    with writing(folder) as place:
        write_model(model, place, max_shard_size)
        kinds = {n: str(p.dtype).removeprefix("torch.") for n, p in model.named_parameters()}
        Plan(plan.keep, plan.units, about).save(place / PLAN, dtypes=described(kinds))
        if sparse:
            make_sparse(model, place, int8=sparse == "int8")
        if record is not None or sparse:
            write_modelling(model, place)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
    return Path(folder)


def load(folder: str | Path, *, cls: Any = None, **options: Any) -> Any:
    """The model that was saved: the same class, the same dtype, bit for bit the same outputs.

    The unpruned model is never allocated. `options` go to `from_pretrained` (device_map, dtype, …);
    `cls` is needed only for a class that transformers does not have.
    """
    folder = Path(folder)
    plan, dtypes, config = _read(folder)
    record = config.get("quantization_config")
    if plan != (record or {}).get("plan", {}).get("keep", {}):
        raise EspalierError(
            f"{folder}: {PLAN} and config.json describe different cuts; one was changed by hand"
        )
    cls = cls or _class_of(config, folder)
    skeleton.register()
    mixed = len(set(dtypes.values())) > 1 and not {"dtype", "torch_dtype"} & set(options)
    if mixed:  # all of them in one that holds each exactly, then each as it was
        options["dtype"] = reduce(torch.promote_types, {getattr(torch, d) for d in dtypes.values()})
    model = _from_pretrained(cls, folder, options)
    if mixed:
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.to(getattr(torch, dtypes.get(name, dtypes[""])))
    return model


# ------------------------------------------------------------------------------------------ writing


def write_model(model: Any, place: Path, max_shard_size: str | int) -> None:
    if any(p.is_meta for p in model.parameters()):
        raise EspalierError("some weights are on the meta device: there is nothing to save yet")
    if getattr(model, "_hf_peft_config_loaded", False):
        raise EspalierError(
            "the model carries an adapter, which would be saved instead of it. Merge it first"
        )
    model.save_pretrained(place, max_shard_size=max_shard_size)
    shards = list(place.glob("*.safetensors"))
    if not shards:
        raise EspalierError("save_pretrained wrote no safetensors file")
    for file in shards:  # written for the owner alone; the config was written as the umask says
        file.chmod((place / "config.json").stat().st_mode)


def check_whole(model: Any) -> None:
    """A part of a composite model that was cut by itself has its record where no loader looks."""
    for path, part in model.named_modules():
        config = getattr(part, "config", None) if hasattr(part, "save_pretrained") else None
        record = getattr(config, "quantization_config", None)
        if skeleton.is_ours(record) and config is not model.config:
            raise EspalierError(
                f"{path} was cut, but it is a part of a {type(model).__name__}, which could not be loaded "
                f"again. Save the part by itself: save(model.{path}, folder)"
            )


def described(dtypes: Mapping[str, str]) -> dict[str, str]:
    """{"": the usual one, and by name every parameter that differs}"""
    usual = max(sorted(set(dtypes.values())), key=list(dtypes.values()).count)
    return {"": usual} | {name: kind for name, kind in dtypes.items() if kind != usual}


def write_modelling(model: Any, place: Path) -> None:
    """Let `from_pretrained(folder, trust_remote_code=True)` work where espalier is not installed."""
    source = Path(inspect.getfile(skeleton)).read_text(encoding="utf-8")
    classes = _auto_classes(model)
    tail = [
        "",
        "",
        "# Below: the classes this folder's config.json names, and the loader they need.",
        "register()",
        "",
    ]
    for name in sorted(set(classes.values())):
        tail += ["", f"class {name}(transformers.{name}):", f'    """{name}, cut."""', ""]
    source = source.replace("import torch\n", "import torch\nimport transformers\n", 1)
    (place / MODELLING).write_text(source + "\n".join(tail), encoding="utf-8")
    path = place / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["auto_map"] = {auto: f"{MODELLING[:-3]}.{name}" for auto, name in classes.items()}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _auto_classes(model: Any) -> dict[str, str]:
    """{"AutoModelForSequenceClassification": "BertForSequenceClassification", …} for this model type."""
    import transformers
    from transformers.models.auto import modeling_auto

    kind, found = model.config.model_type, {}
    for name, value in vars(modeling_auto).items():
        if not (name.startswith("AutoModel") and inspect.isclass(value) and hasattr(value, "_model_mapping")):
            continue
        if name.startswith("_") or not hasattr(transformers, name):
            continue
        names = value._model_mapping._model_mapping.get(kind)
        names = names if isinstance(names, (tuple, list)) else [names]
        own = [n for n in names if n == type(model).__name__] or [n for n in names if n]
        if own and hasattr(transformers, own[0]):
            found[name] = own[0]
    return found


def _about(model: Any) -> dict[str, Any]:
    """Facts about this save; they win over what a plan brought along from another model."""
    import transformers

    name = str(getattr(model.config, "_name_or_path", "") or "")
    if Path(name).exists():  # no paths of this machine in a file that is shipped
        name = Path(name).name
    return {
        "espalier": __version__,
        "model": name,
        "model_type": model.config.model_type,
        "class": type(model).__name__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


# ------------------------------------------------------------------------------------------ reading


def _read(folder: Path) -> tuple[dict[str, str], dict[str, str], dict[str, Any]]:
    """(what plan.json keeps, dtypes, config), each checked as far as it goes without the model."""
    if not folder.is_dir():
        old = [p for p in leftovers(folder) if ".old." in p.name]
        hint = f". A save was killed while it replaced it; rename {old[-1]}" if old else ""
        raise EspalierError(f"no folder {str(folder)!r}{hint}")
    known, config = (folder / PLAN).is_file(), {}
    if known or (folder / "config.json").is_file():
        config = _json(folder / "config.json")
    record = config.get("quantization_config")
    if known:
        keep = Plan.load(folder / PLAN).to_dict()["keep"]
        dtypes = _json(folder / PLAN).get("dtypes") or {"": "float32"}
    elif skeleton.is_ours(record):  # save_pretrained wrote it, as Trainer does: the config knows enough
        keep, dtypes = (record.get("plan") or {}).get("keep"), {"": "float32"}
    else:
        hint = "AutoModel.from_pretrained reads it" if config else "nor of any model"
        raise EspalierError(f"{folder} is not a folder of espalier.save: it has no {PLAN} ({hint})")
    if not isinstance(dtypes, dict) or "" not in dtypes or not set(dtypes.values()) <= set(DTYPES):
        raise EspalierError(f"{folder / PLAN} is damaged: see its dtypes")
    if record is not None:
        try:
            skeleton.check(record)
            Plan.from_dict(record.get("plan"))
        except ValueError as error:
            raise EspalierError(f"{folder / 'config.json'}: {error}") from None
    for index in folder.glob("model.safetensors.index.json"):
        shards = _json(index).get("weight_map")
        if not isinstance(shards, dict) or any(Path(str(v)).name != v for v in shards.values()):
            raise EspalierError(f"{index} is damaged: it names files outside the folder")
    return keep, dtypes, config


def _json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EspalierError(f"cannot read {path}: {error}") from None
    if not isinstance(raw, dict):
        raise EspalierError(f"cannot read {path}: it should hold a table, not a {type(raw).__name__}")
    return raw


def _class_of(config: Mapping[str, Any], folder: Path) -> Any:
    cls = model_class(config.get("architectures"))
    if cls is None:
        raise EspalierError(
            f"{folder} was saved from {config.get('architectures')!r}, which transformers does not have. "
            "Give the class yourself: load(folder, cls=MyModel)"
        )
    return cls


def _from_pretrained(cls: Any, folder: Path, options: dict[str, Any]) -> Any:
    from safetensors import SafetensorError

    options = {
        **options,
        "output_loading_info": True,
        "local_files_only": True,
        "use_safetensors": True,
    }
    try:
        model, info = cls.from_pretrained(folder, **options)
    except SafetensorError as error:
        raise EspalierError(f"a weight file in {folder} is damaged or cut short: {error}") from None
    except (RuntimeError, ValueError, LookupError, OSError, AttributeError, TypeError) as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise EspalierError(f"cannot load {folder}: {first[0]}") from error
    for what in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if info.get(what):
            names = sorted(str(k) for k in info[what])
            raise EspalierError(
                f"{folder}: the weights are not those of the plan: {len(names)} {what.replace('_', ' ')}, "
                f"the first {names[0]}"
            )
    return model
