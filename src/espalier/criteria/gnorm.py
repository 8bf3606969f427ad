"""Gnorm: the product of the norms of a head's Q, K and V gradients (https://arxiv.org/abs/2602.04491).

The score is a sum of logarithms in float64, so that a product of small norms cannot underflow.

objective   "logits", the norm of the logits: no labels needed; or "loss"
pooling     "example", the paper's formula: the mean over sentences of each one's norm; or "batch", what
            the published code does: the norm of each batch's one gradient, which depends on the batches
order       of the norm
bias        whether the gradient of the bias belongs to it
per_layer   whether each layer's scores are divided by their own length
"""

from typing import Any

import torch

from ..core.batches import examples_in
from ..core.errors import EspalierError
from ..core.log import log
from ..engine.gradient_norms import ROLES, example_norms, pooled_norms
from . import Scores, criterion


@criterion("heads", rescored=True)
def gnorm(  # type: ignore[no-untyped-def]
    model,
    sites,
    batches,
    *,
    objective: str = "logits",
    pooling: str = "example",
    order: float = 2.0,
    bias: bool = False,
    per_layer: bool = False,
) -> Scores:
    if objective not in ("logits", "loss") or pooling not in ("example", "batch"):
        raise EspalierError(
            f"gnorm knows the objectives logits and loss and the poolings example and batch; "
            f"got objective={objective!r}, pooling={pooling!r}"
        )
    if not batches:
        raise EspalierError("gnorm needs calibration data: give it some batches")
    how: dict[str, Any] = {"bias": bias, "order": order}

    def by_example(group):  # type: ignore[no-untyped-def]
        def value(out, batch):  # type: ignore[no-untyped-def]
            if objective == "logits":
                return out.logits.flatten(1).norm(dim=1).sum()
            # A model's loss is a mean over examples: times their number, each row is an example's own.
            return batches.loss(out, batch) * len(out.logits)

        return sum(
            _stacked(example_norms(model, sites, batches, number, value, **how), sites) for number in group
        )

    def by_batch(group):  # type: ignore[no-untyped-def]
        size, square = sum(examples_in(batches[n]) for n in group), [0.0]

        def value(out, batch):  # type: ignore[no-untyped-def]
            if objective == "loss":
                return batches.loss(out, batch) * len(out.logits) / size
            # The gradient of a norm ‖Z‖ is that of ½‖Z‖² over ‖Z‖, which adds up over parts of a batch.
            square[0] += float(out.logits.detach().double().square().sum())
            return out.logits.square().sum() / 2

        norms = _stacked(pooled_norms(model, sites, batches, group, value, **how), sites)
        return norms / max(square[0] ** 0.5, TINY) if objective == "logits" else norms

    total = batches.each(by_batch if pooling == "batch" else by_example)  # [groups, roles, units]
    count = len(total) if pooling == "batch" else batches.examples
    logs = (total.sum(0) / count).log().sum(0)
    scores = Scores(zip([s.name for s in sites], logs.split([s.units for s in sites])))
    _report(scores)
    if per_layer:
        return Scores({n: s - torch.logsumexp(2 * s, 0) / 2 for n, s in scores.items()})
    return scores


TINY = torch.finfo(torch.float64).tiny


def _stacked(norms, sites):  # type: ignore[no-untyped-def]
    """[roles, units of all sites]: summed over examples."""
    return torch.stack([torch.cat([norms[s.name][r].sum(0) for s in sites]) for r in ROLES])


def _report(scores: Scores) -> None:
    """Blocks that have no logarithm are said aloud; the ranking puts a gradient of zero first."""
    dead = sum(int((s == -torch.inf).sum()) for s in scores.values())
    wild = sum(int((s.isnan() | (s == torch.inf)).sum()) for s in scores.values())
    if dead or wild:
        units = sum(s.numel() for s in scores.values())
        log.warning("gnorm: of %d heads, %d have no gradient and %d none that is finite", units, dead, wild)
