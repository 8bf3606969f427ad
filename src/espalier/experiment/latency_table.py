"""How long a pass takes by how much of each layer is kept, measured once for a shape on this machine.

The model is timed with a quarter, half and so on of the heads of every layer, then of its neurons. A table
tells which units are worth how many seconds; what is reported is always measured on the model itself.
"""

from __future__ import annotations

import copy
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..architectures.site import Site
from ..architectures.sites import sites as find_sites
from ..core.errors import EspalierError, InvalidValueError
from ..core.mask import Mask
from ..core.terminal import log
from ..core.types import PreTrainedModel
from ..evaluation.cost import parameters
from ..evaluation.latency import time_rounds
from ..io.files import digest, read_json, write_json
from ..pruning.cut import cut
from ..selection.scopes import target_of

FRACTIONS = (0.0, 0.25, 0.5, 0.75)
ROUNDS = 15


@dataclass(frozen=True)
class Shape:
    """What a pass runs on."""

    batch_size: int = 1
    max_length: int = 128

    def batch(self, model: Any) -> dict[str, Tensor]:
        """Return random tokens that a model can read."""
        return self.tokens([model], vocabulary_of(model))

    def tokens(self, models: Sequence[Any], words: int) -> dict[str, Tensor]:
        """Return random tokens below `words`, each text with one end where models look for it."""
        draw = torch.Generator().manual_seed(0)
        ids = torch.randint(0, words, (self.batch_size, self.max_length), generator=draw)
        for config in (one.config for one in models):
            end = getattr(config, "eos_token_id", None)
            if getattr(config, "is_encoder_decoder", False) and isinstance(end, int) and 0 <= end < words > 1:
                ids[ids == end] = (end + 1) % words
                ids[:, -1] = end  # classifiers of T5 and BART read the state there
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def vocabulary_of(model: Any) -> int:
    """Return how many tokens a model knows; raise if it reads something else."""
    words = getattr(model.get_input_embeddings(), "num_embeddings", None)
    if words is None:
        raise InvalidValueError(
            f"{type(model).__name__} reads no tokens, so it cannot be timed on text", "model"
        )
    return int(words)


def time_pass(model: Any, max_length: int) -> float:
    """Return the median seconds of a pass over one text of random tokens."""
    shape = Shape(max_length=max_length)
    return float(time_rounds([model], shape.batch(model), ROUNDS).median())


@dataclass(frozen=True)
class LatencyTable:
    """Seconds of the whole model, and of it with a fraction of one kind of units in every layer."""

    seconds: float
    curves: dict[str, list[list[float]]]  # kind -> [fraction kept, seconds], rising

    def predict(self, sites: Sequence[Site], mask: Mask) -> float:
        """Return the seconds of the model with what a mask keeps, as the sum over its layers."""
        total, units = self.seconds, _units(sites)
        for site in sites:
            kept = float(mask[site.name].sum()) / max(1, site.units)
            fractions, seconds = zip(*self.curves[_kind(site)], (1.0, self.seconds))
            now = float(np.interp(kept, fractions, seconds))
            total -= (self.seconds - now) * site.units / max(1, units[_kind(site)])
        return total

    def costs(self, sites: Sequence[Site]) -> dict[str, float]:
        """Return the seconds of one unit of each site: the slope between about a quarter and all."""
        units = _units(sites)
        least = 1e-3 * self.seconds / max(1, sum(units.values()))

        def slope(kind: str) -> float:
            kept, seconds = self.curves[kind][1]
            return max((self.seconds - seconds) / ((1 - kept) * units[kind]), least) if kept < 1 else least

        return {site.name: slope(_kind(site)) for site in sites}


def latency_table(model: PreTrainedModel, sites: Sequence[Site], shape: Shape) -> LatencyTable:
    """Return the table of a model's shape: from the user's cache folder, or measured and put there."""
    about = _describe(model, sites, shape)
    file = cache_folder() / "latency" / f"{digest(json.dumps(about, sort_keys=True).encode())}.json"
    try:
        found = read_json(file) if file.is_file() else {}
        if set(found.get("curves", ())) == set(_units(sites)):
            return LatencyTable(float(found["seconds"]), found["curves"])
    except (EspalierError, KeyError, TypeError, ValueError):
        log.warning("%s is damaged and is measured again", file)
    made = _measure(model, sites, shape)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {**asdict(made), "of": about})
    except (OSError, EspalierError) as error:
        log.info("the latency table is not kept: %s", error)
    return made


def cache_folder() -> Path:
    """Return the folder for what can be computed again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "espalier"


def _measure(model: PreTrainedModel, sites: Sequence[Site], shape: Shape) -> LatencyTable:
    units, models = _units(sites), [model]
    curves: dict[str, list[list[float]]] = {kind: [] for kind in units}
    for kind, fraction in product(units, FRACTIONS):
        mask = Mask.ones(sites)
        own = [site for site in sites if _kind(site) == kind]
        for site in own:
            mask[site.name][max(target_of(site.name) == "layers", round(fraction * site.units)) :] = False
        curves[kind].append([sum(int(mask[site.name].sum()) for site in own) / max(1, units[kind])])
        # cutting makes new parameters, so the others may be shared
        small = copy.deepcopy(model, {id(p): p for p in model.parameters()})
        models.append(small if mask.kept == 1 else cut(small, mask, report=False))
    seconds = time_rounds(models, shape.batch(model), ROUNDS).quantile(0.25, dim=1).tolist()
    for points, start in zip(curves.values(), range(1, len(seconds), len(FRACTIONS))):
        longest = 0.0  # more units take no less time
        for point, value in zip(points, seconds[start:]):
            longest = min(max(longest, value), seconds[0])
            point.append(longest)
    return LatencyTable(seconds[0], curves)


def _describe(model: Any, sites: Sequence[Site], shape: Shape) -> dict[str, Any]:
    return {
        "model_type": model.config.model_type,
        "sites": {site.name: [site.units, site.macs_per_unit(1)] for site in find_sites(model)},
        "timed": sorted({site.target for site in sites}),
        "parameters": parameters(model),  # a vocabulary or a head of another size takes other time
        "dtype": str(model.dtype),
        "attention": getattr(model.config, "_attn_implementation", None),
        **asdict(shape),
        "threads": torch.get_num_threads(),
        "device": model.device.type,
        "torch": torch.__version__,
        "machine": [platform.node(), platform.machine(), os.cpu_count()],
    }


def _kind(site: Site) -> str:
    """`encoder.layer.0/heads` -> encoder.layer.*/heads"""
    return re.sub(r"\d+", "*", site.name)


def _units(sites: Sequence[Site]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for site in sites:
        found[_kind(site)] = found.get(_kind(site), 0) + site.units
    return found
