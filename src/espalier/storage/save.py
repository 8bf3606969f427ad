"""Save models as safetensors and JSON.

A folder holds the weights, a config with the skeleton of the cut in it, a plan for people and for later cuts,
and a modeling file for machines without espalier.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..core.errors import InvalidValueError, UnsupportedError
from ..core.mask import Plan
from ..core.types import PreTrainedModel, PreTrainedTokenizerBase
from ..io.files import edit_config, write_folder
from ..io.paths import CONFIG, MODELING, PLAN, SPARSE_WEIGHTS
from ..pruning import skeleton
from ..pruning.cut import plan_of, record_of
from . import hook
from .sparse_folder import write_sparse


def save(
    model: PreTrainedModel,
    folder: str | Path,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    origin: Mapping[str, Any] | None = None,
    max_shard_size: str | int = "5GB",
    sparse: bool | str = False,
) -> Path:
    """Write a model, cut or not, so that `load` returns it bit for bit.

    `sparse=True` stores the weights without their zeros, in one file; `sparse="int8"` also stores the
    matrices of the blocks in eight bits, which is lossy. Both need espalier to load.
    The folder is replaced when everything has been written, so a failed save changes nothing. Files of an
    earlier save that this one does not write, such as a tokenizer, are kept.
    """
    if sparse not in (True, False, "int8"):
        raise InvalidValueError(f"`sparse` is True, False or 'int8', not {sparse!r}", "sparse")
    check_whole(model)
    plan, record = plan_of(model), record_of(model)
    origin = {**plan.origin, **(origin or {}), **_describe(model)}
    with write_folder(folder) as place:
        write_weights(model, place, max_shard_size)
        dtypes = {n: str(p.dtype).removeprefix("torch.") for n, p in model.named_parameters()}
        Plan(plan.keep, plan.units, origin).save(place / PLAN, dtypes=summarize_dtypes(dtypes))
        if sparse:
            plain = sorted(place.glob("*.safetensors"))
            write_sparse(model, plain, place, int8=sparse == "int8")
            for file in (*plain, *place.glob("*.safetensors.index.json")):
                file.unlink()
        if record is not None or sparse:
            write_modeling(model, place)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
    return Path(folder)


def write_weights(model: PreTrainedModel, place: Path, max_shard_size: str | int) -> None:
    """Write the weights and the config."""
    if any(p.is_meta for p in model.parameters()):
        raise UnsupportedError("some weights are on the meta device, so there is nothing to save")
    if getattr(model, "_hf_peft_config_loaded", False):
        raise UnsupportedError("the model has an adapter, which would be saved instead of it. Merge it first")
    model.save_pretrained(place, max_shard_size=max_shard_size)
    for file in place.glob("*.safetensors"):  # readable by the owner only; the config follows the umask
        file.chmod((place / CONFIG).stat().st_mode)


def check_whole(model: PreTrainedModel) -> None:
    """Raise if only a part of a composite model was cut: no loader would find the record of that cut."""
    for path, part in model.named_modules():
        config = getattr(part, "config", None) if hasattr(part, "save_pretrained") else None
        record = getattr(config, "quantization_config", None)
        if skeleton.is_ours(record) and config is not model.config:
            raise UnsupportedError(
                f"{path} was cut, but it is a part of a {type(model).__name__}, which could not be loaded "
                f"again. Save the part alone: save(model.{path}, folder)"
            )


def summarize_dtypes(dtypes: Mapping[str, str]) -> dict[str, str]:
    """Return {"": the most frequent dtype, and by name every parameter that differs}."""
    usual = max(sorted(set(dtypes.values())), key=Counter(dtypes.values()).__getitem__)
    return {"": usual} | {name: dtype for name, dtype in dtypes.items() if dtype != usual}


def write_modeling(model: PreTrainedModel, place: Path) -> None:
    """Write code with which `from_pretrained(folder, trust_remote_code=True)` works without espalier."""
    shapes, loader = (Path(inspect.getfile(m)).read_text(encoding="utf-8") for m in (skeleton, hook))
    shapes = shapes.replace("import torch\n", "import torch\nimport transformers\n", 1)
    loader = "".join(line for line in loader.splitlines(True) if not line.startswith("from .."))
    classes = _auto_classes(model)
    lines = [shapes, "", f"SPARSE_WEIGHTS = {SPARSE_WEIGHTS!r}", "", loader, "", "register()", ""]
    for name in sorted(set(classes.values())):
        lines += ["", f"class {name}(transformers.{name}):", f'    """{name}, cut."""', ""]
    (place / MODELING).write_text("\n".join(lines), encoding="utf-8")
    with edit_config(place / CONFIG) as config:
        config["auto_map"] = {auto: f"{Path(MODELING).stem}.{name}" for auto, name in classes.items()}


def _auto_classes(model: PreTrainedModel) -> dict[str, str]:
    """Return {"AutoModelForCausalLM": "GPT2LMHeadModel", …} for this model type."""
    import transformers
    from transformers.models.auto import modeling_auto

    found = {}
    for name, value in vars(modeling_auto).items():
        if not (name.startswith("AutoModel") and inspect.isclass(value) and hasattr(value, "_model_mapping")):
            continue
        names = value._model_mapping._model_mapping.get(model.config.model_type)
        names = names if isinstance(names, (tuple, list)) else [names]
        own = [n for n in names if n == type(model).__name__] or [n for n in names if n]
        if own and hasattr(transformers, name) and hasattr(transformers, own[0]):
            found[name] = own[0]
    return found


def _describe(model: PreTrainedModel) -> dict[str, Any]:
    """Return facts about this save; they replace those of a plan that was made for another model."""
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
