"""Movement: −Σ lr·g·w over the examples: weights that training pushes away from zero score high.

Sanh et al. 2020 (https://arxiv.org/abs/2005.07683). There S is learned while the weights are: its
straight-through gradient is (∂loss/∂W')⊙W, so plain descent gives S = −Σ lr·g·w. Here the weights are frozen
and each example is one step, so it tells where training would begin to push. `Movement` is the same sum for a
loop that does train.

lr   the step of the scores; it scales them and leaves their order
"""

import torch

from ..core.batches import examples_in, model_inputs
from ..core.errors import EspalierError
from ..engine.weight_gradients import weights_of
from . import Scores, criterion


class Movement:
    """The state of learned scores. Call `step()` after every backward pass, before the optimiser's own."""

    def __init__(self, sites, lr: float = 1.0):  # type: ignore[no-untyped-def]
        self.sites, self.lr = list(sites), lr
        zeros = {s.name: torch.zeros_like(s.fold(lambda w, _: w)) for s in self.sites}
        self.scores = Scores(zeros, {s.name: s.input_axis for s in self.sites})

    def step(self) -> None:
        """S ← S − lr·g·w, from the gradients that lie in the weights now."""
        for site in self.sites:
            if site.linear.weight.grad is not None:
                self.scores[site.name] -= site.fold(lambda w, g: (g * w).mul_(self.lr))


@criterion("weights", rescored=True)
def movement(model, sites, batches, *, lr: float = 1.0) -> Scores:  # type: ignore[no-untyped-def]
    if not batches:
        raise EspalierError("movement needs calibration data: give it some batches")
    weights, state = weights_of(sites), Movement(sites, lr)
    for batch in batches:
        for weight in weights:
            weight.grad = None
        with torch.enable_grad():
            loss = batches.loss(model(**model_inputs(batch)), batch)
            (loss * examples_in(batch)).backward()  # a mean over examples; their sum is wanted
        state.step()
    return state.scores
