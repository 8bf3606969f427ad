"""Plain checkpoints: what the architecture's own config can describe needs neither espalier nor its file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from ..architectures.layout import formula
from ..architectures.table import sites
from ..core.errors import EspalierError
from ..io.atomic import writing
from ..pruning.cut import plan_of
from ..storage.save import check_whole, write_model


def export(
    model: Any, folder: str | Path, *, tokenizer: Any = None, max_shard_size: str | int = "5GB"
) -> Path:
    """Write a plain checkpoint that needs neither espalier nor its modelling file.

    Possible where every layer keeps the same number of units and the architecture's config can say so.
    """
    check_whole(model)
    config = plain_config(model)
    with writing(folder) as place:
        write_model(model, place, max_shard_size)
        config.save_pretrained(place)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
        _check_fits(model, place)
    return Path(folder)


def plain_config(model: Any) -> Any:
    """A config that describes the cut model by itself, or an error that says why there is none."""
    config, plan = copy.deepcopy(model.config), plan_of(model)
    for name in ("quantization_config", "auto_map"):
        config.__dict__.pop(name, None)
    config.architectures, config.dtype = [type(model).__name__], model.dtype
    values: dict[str, dict[int, str]] = {}  # config entry -> value -> the first site that needs it
    for site in sites(model):
        units = site.units
        original = plan.units.get(site.name, units)
        if not site.part.config:
            if units != original:
                raise EspalierError(
                    f"{model.config.model_type}: no config entry says that {site.name} has {units} units and "
                    f"not {original}, so a plain export would not load. Use save(model, folder)"
                )
            continue
        if not units:
            raise EspalierError(f"{site.name} has no units left, which a plain config cannot say. Use save()")
        for entry, text in site.part.config.items():
            entry = entry.format(stack=site.path.partition(".")[0])
            values.setdefault(entry, {}).setdefault(formula(text, {**site.sizes, "u": units}), site.name)
    for entry, by_value in values.items():
        if len(by_value) > 1:
            (a, first), (b, second), *_ = by_value.items()
            raise EspalierError(
                f"{entry} would be {a} for {first} and {b} for {second}; a plain config has one number for "
                "all layers. Use save(model, folder), or cut every layer alike"
            )
        setattr(config, entry, next(iter(by_value)))
    return config


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
