"""Attention maps of a model, and the heads that each of them must have."""

from __future__ import annotations

from typing import Any

import torch

from ..architectures.sites import sites
from ..core.types import PreTrainedModel

MAPS = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
TOWERS = {"text_model_output": "text_model", "vision_model_output": "vision_model"}


def maps_of(model: PreTrainedModel, given: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the attention maps that the model gives, by the name of the output and, if it has any, tower."""
    with torch.no_grad():
        out = model(**given, output_attentions=True)
    found = {name: out.get(name) for name in MAPS}
    for tower, path in TOWERS.items():
        if out.get(tower) is not None:
            found[path] = out[tower].get("attentions")
    return {name: maps for name, maps in found.items() if maps is not None}


def heads_of(model: PreTrainedModel) -> dict[str, list[int]]:
    """Return how many heads each map must have, by the same names."""
    both = bool(getattr(model.config, "is_encoder_decoder", False))
    found: dict[str, list[int]] = {}
    for site in sites(model, "heads"):
        stack = site.path.partition(".")[0]
        if site.spec.name == "cross_heads":
            name = "cross_attentions"
        elif stack in TOWERS.values():
            name = stack
        else:
            name = f"{stack}_attentions" if both else "attentions"
        found.setdefault(name, []).extend([site.units * site.group] * site.uses)
    return found


def check_maps(model: PreTrainedModel, given: dict[str, Any], context: str) -> None:
    """Raise AssertionError unless every layer has its map, of as many heads as it has left."""
    found, expected = maps_of(model, given), heads_of(model)
    for name, heads in expected.items():
        maps = found.get(name, ())
        shapes = [None if one is None else tuple(one.shape) for one in maps]
        assert all(shapes), f"{context}: {name} has {shapes}"
        assert [one.shape[1] for one in maps] == heads, f"{context}: {name} has {shapes}, expected {heads}"
        assert len({(one.shape[0], *one.shape[2:]) for one in maps}) <= 1, f"{context}: {name} has {shapes}"
