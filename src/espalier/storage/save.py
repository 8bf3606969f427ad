"""Save models as safetensors and JSON.

A folder holds the weights, a config with the skeleton of the cut in it, a plan for people and for later cuts,
and a modeling file for machines without espalier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..core.errors import InvalidValueError, UnsupportedError
from ..core.mask import Plan
from ..core.types import PreTrainedModel, PreTrainedTokenizerBase
from ..io.output import write_folder
from ..io.paths import CONFIG, PLAN
from ..pruning.cut import plan_of
from .hook import write_code
from .modules import copy_modules
from .remote_code import connect, modeling_code
from .sparse_folder import write_sparse


def save(
    model: PreTrainedModel,
    folder: str | Path,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    origin: Mapping[str, Any] | None = None,
    max_shard_size: str | int = "5GB",
    sparse: bool | str = False,
    overwrite: bool = False,
    output: str = "save",
) -> Path:
    """Write a model, cut or not, so that `load` returns it bit for bit.

    `sparse=True` stores the weights without their zeros, in one file; `sparse="int8"` also stores the
    matrices of the blocks in eight bits, which is lossy. Both need espalier to load.
    The folder is replaced when everything has been written, so a failed save changes nothing. A model in it
    is replaced if it is the same `output`, or else with `overwrite`; all other files are kept.
    """
    if sparse not in (True, False, "int8"):
        raise InvalidValueError(f"`sparse` is True, False or 'int8', not {sparse!r}", "sparse")
    connect()
    plan = plan_of(model)
    origin = {**plan.origin, **(origin or {}), **_describe(model)}
    with write_folder(folder, output, overwrite=overwrite) as place:
        write_weights(model, place, max_shard_size)
        dtypes = {n: str(p.dtype).removeprefix("torch.") for n, p in model.named_parameters()}
        Plan(plan.keep, plan.units, origin).save(place / PLAN, dtypes=summarize_dtypes(dtypes))
        if sparse:
            plain = sorted(place.glob("*.safetensors"))
            write_sparse(model, plain, place, int8=sparse == "int8")
            for file in (*plain, *place.glob("*.safetensors.index.json")):
                file.unlink()
            write_code(place, modeling_code)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
    return Path(folder)


def write_weights(model: PreTrainedModel, place: Path, max_shard_size: str | int) -> None:
    """Write the weights and the config, and what sentence-transformers kept beside them."""
    if any(p.is_meta for p in model.parameters()):
        raise UnsupportedError("some weights are on the meta device, so there is nothing to save")
    if getattr(model, "_hf_peft_config_loaded", False):
        raise UnsupportedError("the model has an adapter, which would be saved instead of it. Merge it first")
    model.save_pretrained(place, max_shard_size=max_shard_size)
    if source := getattr(model.config, "_name_or_path", None):
        copy_modules(str(source), place, needed=model.base_model is model)
    for file in place.glob("*.safetensors"):  # readable by the owner only; the config follows the umask
        file.chmod((place / CONFIG).stat().st_mode)


def summarize_dtypes(dtypes: Mapping[str, str]) -> dict[str, str]:
    """Return {"": the most frequent dtype, and by name every parameter that differs}."""
    usual = max(sorted(set(dtypes.values())), key=Counter(dtypes.values()).__getitem__)
    return {"": usual} | {name: dtype for name, dtype in dtypes.items() if dtype != usual}


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
