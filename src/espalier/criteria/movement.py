"""Movement: −Σ lr·g·w over the examples: weights that training pushes away from zero score high.

Sanh et al. 2020 (https://arxiv.org/abs/2005.07683). There S is learned while the weights are: its
straight-through gradient is (∂loss/∂W')⊙W, so plain descent gives S = −Σ lr·g·w. Here the weights are frozen
and each example is one step, so the score shows where training would begin to push. `Movement` is the same
sum for a loop that trains.

lr   the step of the scores; it scales them and does not change their order
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..architectures.site import WeightSite
from ..core.batches import examples_in, model_inputs
from ..engine.weight_gradients import trainable_weights
from . import Batches, Scores, criterion


class Movement:
    """The state of learned scores. Call `step()` after every backward pass, before the optimiser's own."""

    def __init__(self, sites: Sequence[WeightSite], lr: float = 1.0):
        self.sites, self.lr = list(sites), lr
        zeros = {s.name: torch.zeros_like(s.fold(lambda w, _: w)) for s in self.sites}
        self.scores = Scores(zeros, {s.name: s.input_axis for s in self.sites})

    def step(self) -> None:
        """S ← S − lr·g·w, from the gradients that the weights have now."""

        def push(weight: Tensor, gradient: Tensor | None) -> Tensor:
            return torch.zeros_like(weight) if gradient is None else (gradient * weight).mul_(self.lr)

        for site in self.sites:
            self.scores[site.name] -= site.fold(push)


@criterion(
    "weights",
    rescored=True,
    needs_data=True,
    needs_labels=True,
    learned="Movement",
    idle="zero",
    unit="movement away from zero",
)
def movement(model: nn.Module, sites: Sequence[WeightSite], batches: Batches, *, lr: float = 1.0) -> Scores:
    weights, state = trainable_weights(sites), Movement(sites, lr)
    for batch in batches:
        for weight in weights:
            weight.grad = None
        with torch.enable_grad():
            loss = batches.loss(model(**model_inputs(batch)), batch)
            (loss * examples_in(batch)).backward()  # a mean over examples; their sum is wanted
        state.step()
    return state.scores
