"""Skipping neurons: each example computes only those that it is predicted to need.

A small linear map, fitted in closed form, predicts from the first token in front of a feed-forward network
how much every neuron will write; the strongest are computed, all tokens of the example with the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..architectures.site import Site
from ..architectures.sites import sites
from ..core.batches import Batches, model_inputs, require_batches
from ..core.errors import InvalidValueError, UnsupportedError
from ..core.types import PreTrainedModel
from ..engine.gates import frozen_eval

Predictors = dict[str, Tensor]  # site -> [units, width + 1]


def fit_predictors(model: PreTrainedModel, batches: Batches, *, damping: float = 0.1) -> Predictors:
    """Return what predicts, from the first token, the mean size of what each neuron writes.

    Least squares with `damping` relative to the mean square of the inputs; padding is left out.
    """
    require_batches(batches, "a predictor of neurons")
    if not damping > 0:
        raise InvalidValueError(f"`damping` is a number above 0; got {damping}", "damping")
    found, seen = _sites(model), dict[str, Tensor]()
    sums: dict[str, tuple[Tensor, Tensor]] = {}

    def read(_: nn.Module, args: Any, site: Site) -> None:
        first = args[0][:, 0].double()
        seen[site.name] = torch.cat([first, first.new_ones(len(first), 1)], 1)

    def write(module: Any, args: Any, site: Site, mask: Tensor | None) -> None:
        sizes = args[0].abs().double()
        weight = torch.ones(sizes.shape[:2]) if mask is None else mask
        mean = (sizes * weight.to(sizes)[..., None]).sum(1) / weight.sum(1, keepdim=True).to(sizes)
        written = mean * module.weight.double().norm(dim=0)
        x = seen[site.name]
        before = sums.get(site.name, (0.0, 0.0))
        sums[site.name] = (before[0] + x.T @ x, before[1] + x.T @ written)

    for batch in batches:
        with torch.no_grad(), frozen_eval(model), ExitStack() as hooks:
            for site in found:
                mask = batch.get("attention_mask")
                hooks.enter_context(site.module("up").register_forward_pre_hook(partial(read, site=site)))
                see = partial(write, site=site, mask=mask)
                hooks.enter_context(site.module("write").register_forward_pre_hook(see))
            model(**model_inputs(batch, labels=False))
    out = {}
    for site in found:
        square, product = sums[site.name]
        ridge = damping * square.diagonal().mean() * torch.eye(len(square), dtype=square.dtype)
        out[site.name] = torch.linalg.solve(square + ridge, product).T.float()
    return out


@contextmanager
def skipping_neurons(
    model: PreTrainedModel, predictors: Mapping[str, Tensor], remove: float
) -> Iterator[None]:
    """Compute only the neurons that each example is predicted to need; `remove` is the fraction skipped.

    >>> with skipping_neurons(model, fit_predictors(model, batches), remove=0.5):
    ...     logits = model(**batch).logits
    """
    if not 0 <= remove < 1:
        raise InvalidValueError(f"`remove` is a fraction from 0 to below 1; got {remove}", "remove")
    found = _sites(model)
    if set(predictors) != {site.name for site in found}:
        raise InvalidValueError(
            "`predictors` belong to another model: see the names of its sites", "predictors"
        )
    changed: list[Any] = []
    try:
        for site in found:
            keep = site.units - int(site.units * remove)
            pair = _Pair(site.module("up"), site.module("write"), predictors[site.name], max(1, keep))
            for module, forward in ((pair.up, pair.read), (pair.down, pair.write)):
                module.forward = forward
                changed.append(module)
        yield
    finally:
        for module in changed:
            del module.forward


class _Pair:
    """The two layers of a feed-forward network, each example with its own neurons."""

    def __init__(self, up: Any, down: Any, predictor: Tensor, keep: int):
        self.up, self.down, self.predictor, self.keep = up, down, predictor, keep
        self.chosen = torch.empty(0)
        self.by_neuron = down.weight.detach().T.contiguous()  # rows are faster to pick than columns

    def read(self, x: Tensor) -> Tensor:
        first = x[:, 0].float()
        score = first @ self.predictor[:, :-1].T.to(first) + self.predictor[:, -1].to(first)
        self.chosen = score.topk(self.keep, dim=1).indices.sort(1).values  # [batch, keep]
        bias = self.up.bias
        rows = [
            linear(one, self.up.weight[index], None if bias is None else bias[index])
            for one, index in zip(x, self.chosen)
        ]
        return torch.stack(rows)

    def write(self, x: Tensor) -> Tensor:
        rows = [one @ self.by_neuron[index] for one, index in zip(x, self.chosen)]
        out = torch.stack(rows)
        return out if self.down.bias is None else out + self.down.bias


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
