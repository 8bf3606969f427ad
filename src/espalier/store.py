"""Saving and loading cut models. Safetensors and JSON, nothing that runs by itself.

A folder holds the weights, `config.json` with the skeleton in it, `plan.json` for people and for later
cuts, and a copy of skeleton.py for machines without espalier.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from . import __version__, skeleton
from .anatomy import formula, sites
from .core import Plan, log
from .errors import EspalierError
from .surgery import plan_of

PLAN = "plan.json"
MODELLING = "modeling_espalier.py"


def save(
    model: Any,
    folder: str | Path,
    *,
    tokenizer: Any = None,
    origin: Mapping[str, Any] | None = None,
    max_shard_size: str | int = "5GB",
) -> Path:
    """Write a model so that `load` gives it back bit for bit, with or without a cut.

    The folder appears whole or not at all: a failed save leaves what was there before.
    """
    record = getattr(model.config, "quantization_config", None)
    if record is not None and not (
        isinstance(record, Mapping) and record.get("quant_method") == skeleton.METHOD
    ):
        raise EspalierError(
            "the model is quantised by another method: its own save_pretrained writes it"
        )
    plan = plan_of(model)
    about = {"espalier": __version__, **_about(model), **plan.origin, **(origin or {})}
    with _writing(folder) as place:
        _write_model(model, place, max_shard_size)
        _write_plan(Plan(plan.keep, plan.units, about), model, place)
        if record is not None:
            _write_modelling(model, place)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
    return Path(folder)


def load(folder: str | Path, *, cls: Any = None, **options: Any) -> Any:
    """The model that was saved: the same class, the same dtype, bit for bit the same outputs.

    The unpruned model is never allocated. `options` go to `from_pretrained` (device_map, dtype, …);
    `cls` is needed only for a class that transformers does not have.
    """
    folder = Path(folder)
    plan, config = _read(folder)
    record = config.get("quantization_config") or {}
    if (record.get("plan") or {}).get("keep", {}) != plan.to_dict()["keep"]:
        raise EspalierError(
            f"{folder}: {PLAN} and config.json describe different cuts; one was changed by hand"
        )
    cls = cls or _class_of(config, folder)
    skeleton.register()
    dtypes = plan.origin.get("dtypes") or {}
    if dtypes and "dtype" not in options:  # widest first, then each as it was: widening is exact
        options["dtype"] = max(
            (getattr(torch, d) for d in dtypes.values()), key=lambda d: d.itemsize
        )
    model = _from_pretrained(cls, folder, options)
    if dtypes and options.get("dtype") is not None:
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.to(getattr(torch, dtypes.get(name, dtypes[""])))
    return model


def export(
    model: Any, folder: str | Path, *, tokenizer: Any = None, max_shard_size: str | int = "5GB"
) -> Path:
    """Write a plain checkpoint that needs neither espalier nor its modelling file.

    Possible where every layer keeps the same number of units and the architecture's config can say so.
    """
    config = plain_config(model)
    kept = getattr(model.config, "quantization_config", None)
    with _writing(folder) as place:
        _write_model(model, place, max_shard_size)
        config.save_pretrained(place)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
        _check_fits(model, place)
    assert getattr(model.config, "quantization_config", None) is kept
    return Path(folder)


def plain_config(model: Any) -> Any:
    """A config that describes the cut model by itself, or an error that says why there is none."""
    import copy

    config = copy.deepcopy(model.config)
    config.__dict__.pop("quantization_config", None)
    values: dict[str, dict[int, str]] = {}  # config entry -> value -> the first site that needs it
    for site in sites(model):
        units = site.units
        original = plan_of(model).units.get(site.name, units)
        if not site.part.config:
            if units != original:
                raise EspalierError(
                    f"{model.config.model_type}: no config entry says that {site.name} has {units} units and "
                    f"not {original}, so a plain export would not load. Use save(model, folder)"
                )
            continue
        if not units:
            raise EspalierError(
                f"{site.name} has no units left, which a plain config cannot say. Use save()"
            )
        for entry, text in site.part.config.items():
            entry = entry.format(stack=site.path.partition(".")[0])
            values.setdefault(entry, {}).setdefault(
                formula(text, {**site.sizes, "u": units}), site.name
            )
    for entry, by_value in values.items():
        if len(by_value) > 1:
            (a, first), (b, second), *_ = by_value.items()
            raise EspalierError(
                f"{entry} would be {a} for {first} and {b} for {second}; a plain config has one number for "
                "all layers. Use save(model, folder), or cut every layer alike"
            )
        setattr(config, entry, next(iter(by_value)))
    return config


# ------------------------------------------------------------------------------------------ writing


@contextmanager
def _writing(folder: str | Path) -> Iterator[Path]:
    """A temporary folder beside the target that takes its place when everything has been written."""
    target = Path(folder).resolve()
    if target.exists() and not target.is_dir():
        raise EspalierError(f"{folder} is a file; give the name of a folder")
    if target.is_dir() and any(target.iterdir()) and not (target / "config.json").is_file():
        raise EspalierError(
            f"{folder} holds something that is not a model; it will not be replaced"
        )
    place = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        os.chmod(place, 0o777 & ~_umask())
        yield place
        if target.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
            os.replace(target, old)  # an empty folder may be replaced by a full one
            os.replace(place, target)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(place, target)
        place = None
    except OSError as error:
        raise EspalierError(_cannot_write(folder, error)) from error
    except Exception as error:
        if "No space left" in str(error) or "SafetensorError" in type(error).__name__:
            raise EspalierError(_cannot_write(folder, error)) from error
        raise
    finally:
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _cannot_write(folder: str | Path, error: Exception) -> str:
    why = getattr(error, "strerror", None) or str(error)
    return (
        f"cannot write {folder}: {why}. What stood there before is untouched; choose another place"
    )


def _write_model(model: Any, place: Path, max_shard_size: str | int) -> None:
    if any(p.is_meta for p in model.parameters()):
        raise EspalierError("some weights are on the meta device: there is nothing to save yet")
    model.save_pretrained(place, max_shard_size=max_shard_size)
    if not any(place.glob("*.safetensors")):
        raise EspalierError("save_pretrained wrote no safetensors file")


def _write_plan(plan: Plan, model: Any, place: Path) -> None:
    dtypes = {name: str(p.dtype).removeprefix("torch.") for name, p in model.named_parameters()}
    common = max(set(dtypes.values()), key=list(dtypes.values()).count)
    odd = {name: kind for name, kind in dtypes.items() if kind != common}
    origin = {**plan.origin, "dtypes": {"": common, **odd}} if odd else plan.origin
    Plan(plan.keep, plan.units, origin).save(place / PLAN)


def _write_modelling(model: Any, place: Path) -> None:
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
        if not (
            name.startswith("AutoModel")
            and inspect.isclass(value)
            and hasattr(value, "_model_mapping")
        ):
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
    import transformers

    return {
        "model": str(getattr(model.config, "_name_or_path", "") or ""),
        "model_type": model.config.model_type,
        "class": type(model).__name__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _check_fits(model: Any, place: Path) -> None:
    """A plain export is checked by loading it as a stranger would, on the meta device."""
    config = type(model.config).from_pretrained(place)
    with torch.device("meta"):
        twin = type(model)(config)
    want = {name: tuple(p.shape) for name, p in model.named_parameters()}
    got = {name: tuple(p.shape) for name, p in twin.named_parameters()}
    if want != got:
        name = next(n for n in want | got if want.get(n) != got.get(n))
        raise EspalierError(
            f"a plain config does not give {name} its size {want.get(name)}, but {got.get(name)}"
        )


# ------------------------------------------------------------------------------------------ reading


def _read(folder: Path) -> tuple[Plan, dict[str, Any]]:
    if not folder.is_dir():
        raise EspalierError(f"no folder {str(folder)!r}")
    if not (folder / PLAN).is_file():
        hint = (
            "AutoModel.from_pretrained reads it"
            if (folder / "config.json").is_file()
            else "nor of any model"
        )
        raise EspalierError(f"{folder} is not a folder of espalier.save: it has no {PLAN} ({hint})")
    plan = Plan.load(folder / PLAN)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EspalierError(f"cannot read {folder / 'config.json'}: {error}") from None
    return plan, config


def _class_of(config: Mapping[str, Any], folder: Path) -> Any:
    import transformers

    name = (config.get("architectures") or [""])[0]
    cls = getattr(transformers, name, None) if isinstance(name, str) else None
    if not (inspect.isclass(cls) and issubclass(cls, transformers.PreTrainedModel)):
        raise EspalierError(
            f"{folder} was saved from {name!r}, which transformers does not have. "
            "Give the class yourself: load(folder, cls=MyModel)"
        )
    return cls


def _from_pretrained(cls: Any, folder: Path, options: dict[str, Any]) -> Any:
    from safetensors import SafetensorError

    try:
        model, info = cls.from_pretrained(
            folder, output_loading_info=True, local_files_only=True, **options
        )
    except SafetensorError as error:
        raise EspalierError(f"a weight file in {folder} is damaged or cut short: {error}") from None
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise EspalierError(f"cannot load {folder}: {first[0]}") from error
    for what in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if info.get(what):
            names = sorted(str(k) for k in info[what])
            raise EspalierError(
                f"{folder}: the weights are not those of the plan: {len(names)} {what.replace('_', ' ')}, "
                f"the first {names[0]}"
            )
    log.debug("loaded %s from %s", cls.__name__, folder)
    return model


__all__ = ["export", "load", "plain_config", "save"]
