"""Fisher: the mean over examples of the squared gradient of each one's own loss.

The diagonal of the empirical Fisher information, of single weights; of heads and neurons, that of their
gates. Squares of the gradients of whole batches would be something else, and would change with the batches.
"""

import torch

from ..core import examples_in, model_inputs
from ..errors import EspalierError
from ..probe import gated
from ..slopes import squared_gradients
from . import Scores, criterion


@criterion("heads", "neurons", "weights", rescored=True)
def fisher(model, sites, batches) -> Scores:  # type: ignore[no-untyped-def]
    if not batches:
        raise EspalierError("fisher needs calibration data: give it some batches")
    matrices = [site for site in sites if site.kind == "weights"]
    units = [site for site in sites if site.kind != "weights"]
    scores = Scores(squared_gradients(model, matrices, batches, "fisher") if matrices else ())
    for batch in batches if units else ():
        size = examples_in(batch)
        open_ = {site.name: torch.ones(size, site.units) for site in units}
        with gated(units, open_) as gates, torch.enable_grad():
            loss = batches.loss(model(**model_inputs(batch)), batch) * size
            grads = torch.autograd.grad(loss, list(gates.values()))
        for name, grad in zip(gates, grads):
            scores[name] = scores.get(name, 0) + grad.double().square().sum(0).cpu()
    examples = sum(map(examples_in, batches))
    for site in units:
        scores[site.name] = scores[site.name] / examples
    return scores
