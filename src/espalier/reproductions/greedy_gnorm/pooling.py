"""Gradient pooling: how the gradients of the other heads change when one head is cut.

Greedy scoring rests on this: if cutting one head left the gradients of the others alone, scoring once would
do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ...architectures.site import Site
from ...core.batches import Batches, model_inputs
from ...core.mask import Mask
from ...engine.gates import masked
from ...engine.passes import frozen_eval
from ...experiment.session import Session
from ...io.files import write_json
from ...io.paths import POOLING

ROLES = ("q", "k", "v")
EXAMPLES = 32
CUT = ((0, 0), (1, 1))  # layer, head


def pool_gradients(model: nn.Module, sites: Sequence[Site], batches: Batches) -> dict[str, list[Tensor]]:
    """Return {role: [layer][units]}: the mean over each head's block of the gradient of the logits' norm."""
    unique = list({id(w): w for site in sites for role in ROLES for w in [site.module(role).weight]}.values())
    with frozen_eval(model), torch.enable_grad():
        for weight in unique:
            weight.requires_grad_()
        norms = [
            model(**model_inputs(batch, labels=False)).logits.flatten(1).norm(dim=1) for batch in batches
        ]
        torch.autograd.backward(sum(norm.sum() for norm in norms), inputs=unique)
        found = {role: [site.grad(role).double().mean((1, 2)) for site in sites] for role in ROLES}
        for weight in unique:
            weight.requires_grad_(False)
    return found


def write_pooling(session: Session, folder: Path) -> None:
    """Write the change at every head and role when each head of `CUT` is cut, unless it is there already."""
    path, sites = folder / POOLING, session.sites
    if path.exists() or session.target != "heads":
        return
    units = [(layer, head) for layer, head in CUT if layer < len(sites) and head < sites[layer].units]
    middle = session.calibration[len(session.calibration) // 2]  # of medium length
    some = Batches([{name: value[:EXAMPLES] for name, value in middle.items()}])
    before = pool_gradients(session.model, sites, some)
    change = {}
    for layer, head in units:
        with masked(sites, Mask.without(sites, {layer: [head]})):
            after = pool_gradients(session.model, sites, some)
        change[f"{layer},{head}"] = {
            role: [(b - a).tolist() for a, b in zip(before[role], after[role])] for role in ROLES
        }
    write_json(path, {"cut": [list(u) for u in units], "roles": list(ROLES), "change": change})
