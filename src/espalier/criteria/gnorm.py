"""Gnorm: the product of the norms of a head's Q, K and V gradients (https://arxiv.org/abs/2602.04491).

The score is a sum of logarithms in float64, so that a product of small norms cannot underflow.

objective   "logits", the norm of the logits: no labels needed; or "loss"
pooling     "example", the paper's formula: the mean over sentences of each one's norm; or "batch", what
            the published code does: the norm of each batch's one gradient, which depends on the batches
order       of the norm
bias        whether the gradient of the bias belongs to it
per_layer   whether each layer's scores are divided by their own length
"""

import torch

from ..core import log
from ..errors import EspalierError
from ..gradnorms import gradient_norms
from . import Scores, criterion

ROLES = ("q", "k", "v")


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
    whole, rows = pooling == "batch", 0
    total = {s.name: {r: torch.zeros(s.units, dtype=torch.float64) for r in ROLES} for s in sites}
    for batch in batches:

        def value(out, batch=batch):  # type: ignore[no-untyped-def]
            if objective == "logits":
                logits = out.logits.flatten(1)
                return torch.linalg.vector_norm(logits) if whole else logits.norm(dim=1).sum()
            # A model's loss is a mean over examples: times their number, each row is an example's own.
            return batches.loss(out, batch) * (1 if whole else len(out.logits))

        norms = gradient_norms(
            model, sites, batch, value, roles=ROLES, bias=bias, order=order, summed=whole
        )
        for site in sites:
            for role in ROLES:
                total[site.name][role] += norms[site.name][role].sum(0)
        rows += len(norms[sites[0].name]["q"])
    scores = Scores(
        {n: sum((v / rows).log() for v in parts.values()) for n, parts in total.items()}
    )
    _report(scores)
    if per_layer:
        return Scores({n: s - torch.logsumexp(2 * s, 0) / 2 for n, s in scores.items()})
    return scores


def _report(scores: Scores) -> None:
    """Blocks that have no logarithm are said aloud; the ranking puts a gradient of zero first."""
    dead = sum(int((s == -torch.inf).sum()) for s in scores.values())
    wild = sum(int((s.isnan() | (s == torch.inf)).sum()) for s in scores.values())
    if dead or wild:
        units = sum(s.numel() for s in scores.values())
        log.warning(
            "gnorm: of %d heads, %d have no gradient and %d none that is finite", units, dead, wild
        )
