"""Predictors: which units an example will need, from what it has in front of a sublayer.

One small linear map for each site, fitted in closed form, from a summary of the example (its first token, or
the mean of its tokens) to how much every unit writes. The units with the highest predictions are computed,
all tokens of the example with the same ones; all weights are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..architectures.site import Site
from ..core.batches import Batches, model_inputs, require_batches
from ..core.errors import InvalidValueError
from ..core.types import PreTrainedModel
from ..engine.passes import frozen_eval

Predictors = dict[str, Tensor]  # site -> [units, width + 1]
Written = Callable[[Site, Tensor], Tensor]  # what reaches the writer -> how much each unit writes
Summary = Callable[[Tensor, Tensor | None], Tensor]  # hidden states and their mask -> [examples, width]


def first_token(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the first token of every example."""
    return x[:, 0]


def mean_token(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean of the tokens of every example, without padding; x may have numbers for each unit."""
    if mask is None or mask.shape != x.shape[:2]:  # the mask of a sound counts its samples
        return x.mean(1)
    weight = mask.to(x)[..., None]
    return (x * weight).sum(1) / weight.sum(1).clamp(min=1)


def fit(
    model: PreTrainedModel,
    batches: Batches,
    found: Sequence[Site],
    reader: str,
    summary: Summary,
    written: Written,
    damping: float,
) -> Predictors:
    """Return what predicts, from a summary of what `reader` reads, the mean of `written` over tokens.

    Least squares with `damping` relative to the mean square of the inputs; padding is left out.
    """
    require_batches(batches, f"a predictor of {found[0].target}" if found else "a predictor")
    if not damping > 0:
        raise InvalidValueError(f"`damping` is a number above 0; got {damping}", "damping")
    seen, sums = dict[str, Tensor](), dict[str, tuple[Tensor, Tensor]]()

    def read(_: nn.Module, args: Any, site: Site, mask: Tensor | None) -> None:
        first = summary(args[0], mask).double()
        seen[site.name] = torch.cat([first, first.new_ones(len(first), 1)], 1)

    def write(_: nn.Module, args: Any, site: Site, mask: Tensor | None) -> None:
        mean = mean_token(written(site, args[0].double()), mask)
        x = seen[site.name]
        before = sums.get(site.name, (0.0, 0.0))
        sums[site.name] = (before[0] + x.T @ x, before[1] + x.T @ mean)

    for batch in batches:
        with torch.no_grad(), frozen_eval(model), ExitStack() as hooks:
            for site in found:
                for role, see in ((reader, read), ("write", write)):
                    hook = partial(see, site=site, mask=batch.get("attention_mask"))
                    hooks.enter_context(site.module(role).register_forward_pre_hook(hook))
            model(**model_inputs(batch, labels=False))
    out = {}
    for name, (square, product) in sums.items():
        eye = torch.eye(len(square), dtype=square.dtype, device=square.device)
        ridge = damping * square.diagonal().mean() * eye
        out[name] = torch.linalg.solve(square + ridge, product).T.float()
    return out


def check(found: Sequence[Site], predictors: Mapping[str, Tensor], remove: float) -> None:
    """Raise unless `remove` is a fraction and the predictors are of these sites."""
    if not 0 <= remove < 1:
        raise InvalidValueError(f"`remove` is a fraction from 0 to below 1; got {remove}", "remove")
    if {name: len(t) for name, t in predictors.items()} != {site.name: site.units for site in found}:
        raise InvalidValueError(
            "`predictors` belong to another model: see the names of its sites and their units", "predictors"
        )


def kept(site: Site, remove: float) -> int:
    """Return how many units of a site each example computes, at least one."""
    return max(1, site.units - int(site.units * remove))


class Choice:
    """The units that each example of a batch computes, and layers applied with them alone."""

    def __init__(self, predictor: Tensor, keep: int):
        self.predictor, self.keep = predictor, keep
        self.units = torch.empty(0)  # one row for each choice that occurs, in order
        self.rows: list[Tensor] = []  # the examples of each choice

    def choose(self, summary: Tensor) -> None:
        """Choose for every example; those that choose the same are computed together."""
        first = summary.float()
        score = first @ self.predictor[:, :-1].T.to(first) + self.predictor[:, -1].to(first)
        chosen = score.topk(self.keep, dim=1).indices.sort(1).values
        self.units, group = torch.unique(chosen, dim=0, return_inverse=True)
        self.rows = [(group == number).nonzero().flatten() for number in range(len(self.units))]

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None, index: Tensor) -> Tensor:
        """Return what the rows of a weight that belong to the chosen units give; `index` is [units, rows]."""
        parts = []
        for units, rows in zip(self.units, self.rows):
            at = index[units].flatten()
            parts.append(linear(self._some(x, rows), weight[at], None if bias is None else bias[at]))
        return self._joined(parts)

    def add_up(self, x: Tensor, by_channel: Tensor, bias: Tensor | None, index: Tensor) -> Tensor:
        """Return what chosen units write; `by_channel` is the transposed weight: rows are faster to pick."""
        parts = [
            self._some(x, rows) @ by_channel[index[units].flatten()]
            for units, rows in zip(self.units, self.rows)
        ]
        out = self._joined(parts)
        return out if bias is None else out + bias

    def _some(self, x: Tensor, rows: Tensor) -> Tensor:
        return x if len(self.rows) == 1 else x[rows]

    def _joined(self, parts: list[Tensor]) -> Tensor:
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts)[torch.cat(self.rows).argsort()]
