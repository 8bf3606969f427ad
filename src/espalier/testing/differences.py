"""Gradients against central differences: a block of weights is moved a little along its own gradient.

In float64 on a copy: in float32 the difference of two values has hardly a correct digit.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..architectures.site import Site
from ..architectures.sites import sites as find_sites
from ..core.batches import model_inputs
from ..core.types import PreTrainedModel
from ..engine.gradient_norms import ROLES, gradient_norms
from ..engine.passes import frozen_eval

Objective = Callable[[Any], Tensor]
# relative to a block's length: longer steps are curved or cross a kink (relu), shorter ones are rounding
STEPS = (1e-6, 1e-5, 1e-7, 1e-4, 1e-3)
ENOUGH = 1e-6  # no other step is tried below this relative error
ROUNDING = 1e-10  # relative to the value: a smaller change shows nothing about a gradient


def gradient_errors(
    model: PreTrainedModel,
    sites: Sequence[Site],
    batch: Mapping[str, Any],
    objective: Objective,
    *,
    sample: int = 12,
    seed: int = 0,
) -> dict[str, float | None]:
    """Return {`site unit role`: relative error} of a sample of heads; None where a gradient is too small.

    The norm that gnorm computes is compared with both: the difference of values along the gradient, and the
    length of autograd's gradient.
    """
    wide = copy.deepcopy(model).to("cpu", torch.float64)
    names = {site.name for site in sites}
    found = [site for site in find_sites(wide, "heads") if site.name in names]
    given = {k: v.cpu() if isinstance(v, Tensor) else v for k, v in model_inputs(batch).items()}
    given = {k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in given.items()}
    units = [(site, unit) for site in found for unit in range(site.units)]
    chosen = sorted(random.Random(seed).sample(range(len(units)), min(sample, len(units))))
    errors: dict[str, float | None] = {}

    def value() -> float:
        with torch.no_grad():
            return float(objective(wide(**given)))

    with frozen_eval(wide), _Float64():
        if not isfinite(value()):  # in float64 some eager attentions turn a mask into nan
            wide.set_attn_implementation("sdpa")
        norms = gradient_norms(wide, found, given, objective, summed=True)
        gradients = _gradients(wide, found, given, objective)
        smallest = ROUNDING * abs(value())
        for site, unit in (units[i] for i in chosen):
            for role in ROLES:
                place = site.module(role).weight, site.axis(role), site.index(role)[unit]
                norm, gradient = float(norms[site.name][role][0, unit]), gradients[site.module(role)]
                errors[f"{site.name} {unit} {role}"] = _error(place, norm, gradient, smallest, value)
    return errors


def _error(
    place: tuple[Tensor, int, Tensor],
    norm: float,
    gradient: Tensor,
    smallest: float,
    value: Callable[[], float],
) -> float | None:
    """Return the relative error of the norm for one block: the weight, the axis and the index of its rows."""
    weight, axis, index = place
    block = weight.detach().index_select(axis, index)  # a copy
    along = gradient.index_select(axis, index)
    length, size = float(along.norm()), float(block.norm()) or 1.0
    scale = max(norm, length)
    if not length > 0:  # no direction to move along: only the norm can be compared
        return None if norm == length else inf
    if scale * max(STEPS) * size < smallest:
        return None
    best = inf
    for step in STEPS:
        ends = []
        for sign in (1, -1):
            weight.data.index_copy_(axis, index, block + sign * step * size / length * along)
            ends.append(value())
        weight.data.index_copy_(axis, index, block)
        rise = (ends[0] - ends[1]) / (2 * step * size)
        best = min(best, max(abs(rise - norm), abs(length - norm)) / scale)
        if best < ENOUGH:
            break
    return best


def _gradients(
    model: nn.Module, sites: Sequence[Site], given: Mapping[str, Any], objective: Objective
) -> dict[nn.Module, Tensor]:
    """Return the gradient of every weight, by autograd."""
    modules = list(dict.fromkeys(site.module(role) for site in sites for role in ROLES))
    for module in modules:
        module.weight.requires_grad_()
    with torch.enable_grad():
        value = objective(model(**given))
        found = torch.autograd.grad(value, [m.weight for m in modules], allow_unused=True)
    for module in modules:
        module.weight.requires_grad_(False)
    return {m: torch.zeros_like(m.weight) if g is None else g for m, g in zip(modules, found)}


class _Float64(TorchFunctionMode):
    """Keep norms, softmaxes and rotations in float64 that a model computes in float32 whatever its dtype."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = Tensor.double if func == Tensor.float else func
        args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
        named = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        return func(*args, **named)
