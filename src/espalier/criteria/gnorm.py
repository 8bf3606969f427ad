"""Gnorm: the product of the norms of a head's Q, K and V gradients (https://arxiv.org/abs/2602.04491).

The score is a sum of logarithms in float64, so that a product of small norms cannot underflow; a head without
a gradient scores −inf.

objective   "logits", the norm of the logits: no labels needed; or "loss"
pooling     "example", the paper's formula: the mean over sentences of each one's norm; or "batch", what
            the published code does: the norm of each batch's one gradient, which depends on the batches
order       of the norm
bias        whether the gradient of the bias is part of it
per_layer   whether each layer's scores are divided by their own length
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import Site
from ..core.batches import Batch, examples_in
from ..core.errors import InvalidValueError
from ..core.terminal import log
from ..engine.gradient_norms import ROLES, Norms, example_norms, pooled_norms
from . import Batches, Scores, criterion

TINY = torch.finfo(torch.float64).tiny


@criterion(
    "heads",
    rescored=True,
    needs_data=True,
    needs_labels=True,
    unit="ln of the product of gradient norms",
    colour="#0072B2",
    marker="o",
)
def gnorm(
    model: nn.Module,
    sites: Sequence[Site],
    batches: Batches,
    *,
    objective: str = "logits",
    pooling: str = "example",
    order: float = 2.0,
    bias: bool = False,
    per_layer: bool = False,
) -> Scores:
    for name, value, valid in (
        ("objective", objective, ("logits", "loss")),
        ("pooling", pooling, ("example", "batch")),
    ):
        if value not in valid:
            raise InvalidValueError(f"`{name}` of gnorm is {' or '.join(valid)}; got {value!r}", name)

    def by_example(group: Sequence[int]) -> Tensor:
        def value(out: Any, batch: Batch) -> Tensor:
            if objective == "logits":
                return batches.read(out, batch).flatten(1).norm(dim=1).sum()
            # a model's loss is a mean over examples: times their number, each row is an example's own
            return batches.loss(out, batch) * len(batches.read(out, batch))

        norms = (example_norms(model, sites, batches, n, value, bias=bias, order=order) for n in group)
        return sum((_stack(each, sites) for each in norms), torch.zeros(()))

    def by_batch(group: Sequence[int]) -> Tensor:
        size, square = sum(examples_in(batches[n]) for n in group), 0.0

        def value(out: Any, batch: Batch) -> Tensor:
            nonlocal square
            found = batches.read(out, batch)
            if objective == "loss":
                return batches.loss(out, batch) * len(found) / size
            # the gradient of a norm ‖Z‖ is that of ½‖Z‖² over ‖Z‖, which adds up over parts of a batch
            square += float(found.detach().double().square().sum())
            return found.square().sum() / 2

        norms = _stack(pooled_norms(model, sites, batches, group, value, bias=bias, order=order), sites)
        return norms / max(square**0.5, TINY) if objective == "logits" else norms

    total = batches.map_groups(by_batch if pooling == "batch" else by_example)  # [groups, roles, units]
    count = len(total) if pooling == "batch" else batches.examples
    logs = (total.sum(0) / count).log().sum(0)
    zero, infinite = int((logs == -torch.inf).sum()), int((logs.isnan() | (logs == torch.inf)).sum())
    if zero or infinite:  # the ranking removes those without a gradient first
        log.warning("gnorm: of %d heads, %d have no gradient, %d not finite", len(logs), zero, infinite)
    scores = Scores(zip([s.name for s in sites], logs.split([s.units for s in sites])))
    if per_layer:
        return Scores({n: s - torch.logsumexp(2 * s, 0) / 2 for n, s in scores.items()})
    return scores


def _stack(norms: Norms, sites: Sequence[Site]) -> Tensor:
    """Return [roles, units of all sites], summed over examples."""
    return torch.stack([torch.cat([norms[s.name][r].sum(0) for s in sites]) for r in ROLES])
