"""Skipping neurons: each example computes only those that it is predicted to need.

What predicts them is described in predictor.py: how much every neuron will write, by the first token in
front of the feed-forward network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import Site
from ..architectures.sites import sites
from ..core.batches import Batches
from ..core.errors import UnsupportedError
from ..core.types import PreTrainedModel
from .predictor import Choice, Predictors, check, first_token, fit, kept


def fit_predictors(model: PreTrainedModel, batches: Batches, *, damping: float = 0.1) -> Predictors:
    """Return what predicts, from the first token, the mean size of what each neuron writes.

    Least squares with `damping` relative to the mean square of the inputs; padding is left out.
    """

    def written(site: Site, x: Tensor) -> Tensor:
        return x.abs() * site.module("write").weight.to(x).norm(dim=0)

    return fit(model, batches, _sites(model), "up", first_token, written, damping)


@contextmanager
def skipping_neurons(
    model: PreTrainedModel, predictors: Mapping[str, Tensor], remove: float
) -> Iterator[None]:
    """Compute only the neurons that each example is predicted to need; `remove` is the fraction skipped.

    >>> with skipping_neurons(model, fit_predictors(model, batches), remove=0.5):
    ...     logits = model(**batch).logits
    """
    found = _sites(model)
    check(found, predictors, remove)
    changed: list[Any] = []
    try:
        for site in found:
            pair = _Pair(site, Choice(predictors[site.name], kept(site, remove)))
            for module, forward in ((pair.up, pair.read), (pair.down, pair.write)):
                module.forward = forward
                changed.append(module)
        yield
    finally:
        for module in changed:
            del module.forward


class _Pair:
    """The two layers of a feed-forward network, each example with its own neurons."""

    def __init__(self, site: Site, choice: Choice):
        self.up, self.down, self.choice = site.module("up"), site.module("write"), choice
        self.index = torch.arange(site.units, device=self.up.weight.device)[:, None]
        self.by_neuron = self.down.weight.detach().T.contiguous()

    def read(self, x: Tensor) -> Tensor:
        self.choice.choose(first_token(x))
        return self.choice.apply(x, self.up.weight, self.up.bias, self.index)

    def write(self, x: Tensor) -> Tensor:
        return self.choice.add_up(x, self.by_neuron, self.down.bias, self.index)


def _sites(model: PreTrainedModel) -> list[Site]:
    found = [site for site in sites(model, "neurons") if site.units]
    for site in found:
        layers = [site.module(role) for role in site.places]
        if set(site.places) != {"up", "write"} or not all(isinstance(one, nn.Linear) for one in layers):
            raise UnsupportedError(
                f"{site.name} of {model.config.model_type}: neurons are skipped between two linear layers, "
                "and this network is gated, fused or transposed"
            )
    return found
