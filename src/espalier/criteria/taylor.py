"""Taylor: |∂loss/∂gate| of each example, averaged (Michel et al. 2019, https://arxiv.org/abs/1905.10650).

The gate is [batch, units], so one backward pass gives every example its own gradient and the score does
not depend on how examples are put into batches, provided that the loss is the mean over examples of each
one's own, as a classifier's is. A language model's is a mean over tokens; if examples have different numbers
of them, give `Batches` a loss that averages by example. No gradient of a weight is computed.
"""

import torch

from ..errors import EspalierError
from ..probe import gated
from . import Scores, criterion


@criterion("heads", "neurons")
def taylor(model, sites, batches) -> Scores:  # type: ignore[no-untyped-def]
    if not batches:
        raise EspalierError("taylor needs calibration data: give it some batches")
    total = {site.name: torch.zeros(site.shape, dtype=torch.float64) for site in sites}
    examples = 0
    for batch in batches:
        size = next(len(v) for v in batch.values() if isinstance(v, torch.Tensor))
        open_ = {site.name: torch.ones(size, site.units) for site in sites}
        with gated(sites, open_) as gates:
            loss = batches.loss(model(**batch), batch)
            # The loss is a mean over the batch: times its size, each row is one example's own gradient.
            grads = torch.autograd.grad(loss * size, list(gates.values()))
        for name, grad in zip(gates, grads):
            total[name] += grad.abs().sum(0).double().cpu()
        examples += size
    return Scores({name: value / max(examples, 1) for name, value in total.items()})
