"""SNIP: |g·w| of the mean loss, as a share of their sum (https://arxiv.org/abs/1810.02340).

g·w is the gradient of a gate on the weight. One sweep of summed gradients; the order is that of `taylor`.
"""

from ..engine.weight_gradients import add_gradients
from . import Scores, criterion


@criterion("weights", rescored=True)
def snip(model, sites, batches) -> Scores:  # type: ignore[no-untyped-def]
    add_gradients(model, sites, batches, "snip")
    each = {site.name: site.fold(lambda w, g: (g * w).abs()) for site in sites}
    total = sum(value.double().sum().item() for value in each.values())
    return Scores({name: value.div_(total or 1.0) for name, value in each.items()})
