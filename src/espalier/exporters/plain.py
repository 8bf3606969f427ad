"""Plain checkpoints: models that their own config can describe load without espalier."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from ..architectures.sites import sites
from ..architectures.table import formula
from ..core.errors import FolderError, FormatError, UnsupportedError
from ..core.types import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from ..io.output import write_folder
from ..io.paths import MODELING
from ..pruning.cut import plan_of
from ..storage.load import load
from ..storage.save import write_weights

AS_IT_IS = "The folder that `save` or `prune` wrote loads as it is"


def export(
    model: str | Path | PreTrainedModel,
    folder: str | Path,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_shard_size: str | int = "5GB",
    overwrite: bool = False,
) -> Path:
    """Write a plain checkpoint that loads without espalier and without a modeling file.

    Possible if every layer keeps the same number of units and the architecture's config has an entry for it.
    """
    from transformers import AutoTokenizer

    name = type(model).__name__
    if isinstance(model, (str, Path)):
        name = Path(model).resolve().name
        if Path(model).resolve() == Path(folder).resolve():
            raise FolderError(f"{folder} is the model itself. Choose another folder", folder)
        if tokenizer is None and any(Path(model).glob("tokenizer*")):
            try:
                tokenizer = AutoTokenizer.from_pretrained(model)
            except Exception as error:
                first = " ".join(str(error).split())
                raise FormatError(f"the tokenizer in {model} cannot be loaded: {first}", model) from error
        model = load(model)
    config = plain_config(model)
    with write_folder(folder, f"export of {name}", overwrite=overwrite) as place:
        write_weights(model, place, max_shard_size)
        (place / MODELING).unlink(missing_ok=True)
        config.save_pretrained(place)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
        _check_loads(model, place)
    return Path(folder)


def plain_config(model: PreTrainedModel) -> PreTrainedConfig:
    """Return a config that describes the cut model alone, or raise if there is none."""
    config, plan = copy.deepcopy(model.config), plan_of(model)
    for one in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        for name in ("quantization_config", "auto_map", "transformers_weights"):
            getattr(one, "__dict__", {}).pop(name, None)
    config.architectures, config.dtype = [type(model).__name__], model.dtype
    values: dict[str, dict[int, str]] = {}  # config entry -> value -> the first site that needs it
    for site in sites(model):
        units, original = site.units, plan.units.get(site.name, site.units)
        if not site.spec.config:
            if units != original:
                raise UnsupportedError(
                    f"{model.config.model_type} has no config entry for {site.name}: a plain checkpoint with "
                    f"{units} units instead of {original} would not load. {AS_IT_IS}"
                )
            continue
        if not units:
            raise UnsupportedError(f"{site.name} has no units, which no plain config allows. {AS_IT_IS}")
        for entry, text in site.spec.config.items():
            entry = entry.format(stack=site.path.partition(".")[0])
            values.setdefault(entry, {}).setdefault(formula(text, {**site.sizes, "u": units}), site.name)
    for entry, by_value in values.items():
        if len(by_value) > 1:
            (a, first), (b, second), *_ = by_value.items()
            raise UnsupportedError(
                f"{entry} would be {a} for {first} and {b} for {second}; a plain config has one number for "
                f"all layers. {AS_IT_IS}; for a plain one remove as many units from every layer"
            )
        setattr(config, entry, next(iter(by_value)))
    return config


def _check_loads(model: PreTrainedModel, place: Path) -> None:
    """Build the exported model on the meta device from its config alone and compare all shapes."""
    config = type(model.config).from_pretrained(place)
    with torch.device("meta"):
        exported = type(model)(config)
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
    found = {name: tuple(p.shape) for name, p in exported.named_parameters()}
    if expected != found:
        name = next(n for n in expected | found if expected.get(n) != found.get(n))
        raise UnsupportedError(
            f"a plain config gives {name} the size {found.get(name)} instead of {expected.get(name)}"
        )
