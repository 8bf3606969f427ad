"""Gradient pooling: how the gradients of the other heads change when one head is cut.

Greedy scoring rests on this: if cutting one head left the others' gradients alone, scoring once would do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.batches import Batches, model_inputs
from ...core.mask import Mask
from ...engine.gates import masked, quiet
from ...experiment.session import Bench
from ...io.json_file import write_json

ROLES = ("q", "k", "v")
EXAMPLES = 32


def pooled_gradients(model: Any, sites: Sequence[Any], batches: Batches) -> dict[str, list[Tensor]]:
    """{role: [layer][units]}: the mean over each head's block of the gradient of the logits' norm."""
    weights = {role: [site.module(role).weight for site in sites] for role in ROLES}
    with quiet(model), torch.enable_grad():
        unique = list({id(w): w for role in ROLES for w in weights[role]}.values())
        for weight in unique:
            weight.requires_grad_()
        value = sum(
            model(**model_inputs(batch, labels=False)).logits.flatten(1).norm(dim=1).sum()
            for batch in batches
        )
        torch.autograd.backward(value, inputs=unique)
        found = {role: [site.grad(role).double().mean((1, 2)) for site in sites] for role in ROLES}
        for weight in unique:
            weight.requires_grad_(False)
    return found


def write_pooling(bench: Bench, folder: Path, cut: Sequence[tuple[int, int]] = ((0, 0), (1, 1))) -> None:
    """pooling.json: the change at every head and role when each of `cut` is gone, as published."""
    path = folder / "pooling.json"
    if path.exists() or bench.target != "heads":
        return
    sites = bench.sites
    units = [(layer, head) for layer, head in cut if layer < len(sites) and head < sites[layer].units]
    some = Batches([_first(bench.calibration, EXAMPLES)])
    before = pooled_gradients(bench.model, sites, some)
    change = {}
    for layer, head in units:
        with masked(sites, Mask.without(sites, {layer: [head]})):
            after = pooled_gradients(bench.model, sites, some)
        change[f"{layer},{head}"] = {
            role: [(b - a).tolist() for a, b in zip(before[role], after[role])] for role in ROLES
        }
    write_json(path, {"cut": [list(u) for u in units], "roles": list(ROLES), "change": change})


def _first(batches: Batches, examples: int) -> dict[str, Any]:
    middle = batches[len(batches) // 2]  # of middling length
    return {name: value[:examples] for name, value in middle.items()}
