"""Gradients against central differences: a block of weights is moved a little along its own gradient.

In float64 on a copy, for in float32 the difference of two values has hardly a digit left.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..architectures.table import sites as find_sites
from ..core.batches import model_inputs
from ..engine.gates import quiet
from ..engine.gradient_norms import gradient_norms

Objective = Callable[[Any], Tensor]
# Of a block's own length: too long a step is curved or crosses a kink (relu), too short drowns in rounding.
STEPS = (1e-6, 1e-5, 1e-7, 1e-4, 1e-3)
ENOUGH = 1e-6  # a relative error this small need not be tried to be made smaller
ROUNDING = 1e-10  # of the value: a change smaller than this says nothing about a gradient


def gradient_errors(
    model: nn.Module,
    sites: Sequence[Any],
    batch: Mapping[str, Any],
    objective: Objective,
    *,
    roles: Sequence[str] = ("q", "k", "v"),
    sample: int = 12,
    seed: int = 0,
) -> dict[str, float | None]:
    """{`site unit role`: relative error} of a sample of heads; None where a gradient is too small to be seen.

    The norm that gnorm computes without a gradient of a weight is held against both: the difference of values
    and the length of autograd's gradient.
    """
    twin, its = _twin(model, sites)
    given = _float64(model_inputs(batch))
    units = [(site, unit) for site in its for unit in range(site.units)]
    chosen = sorted(random.Random(seed).sample(range(len(units)), min(sample, len(units))))
    errors: dict[str, float | None] = {}

    def value() -> float:
        with torch.no_grad():
            return float(objective(twin(**given)))

    with quiet(twin), _Float64():
        if not isfinite(value()):  # in float64 some eager attentions make nan of a mask
            twin.set_attn_implementation("sdpa")
        norms = gradient_norms(twin, its, given, objective, roles=roles, summed=True)
        slopes = _slopes(twin, its, given, objective, roles)
        least = ROUNDING * abs(value())
        for site, unit in (units[place] for place in chosen):
            for role in roles:
                norm, slope = float(norms[site.name][role][0, unit]), slopes[site.module(role)]
                error = _error(site, role, unit, norm, slope, least, value)
                errors[f"{site.name} {unit} {role}"] = error
    return errors


def _error(
    site: Any,
    role: str,
    unit: int,
    norm: float,
    slope: Tensor,
    least: float,
    value: Callable[[], float],
) -> float | None:
    weight, axis, index = site.module(role).weight, site.axis(role), site.index(role)[unit]
    block = weight.detach().index_select(axis, index)  # a copy
    along = slope.index_select(axis, index)
    length, size = float(along.norm()), float(block.norm()) or 1.0
    scale = max(norm, length)
    if not length > 0:  # nothing to go along; that the norm says so too is all there is to see
        return None if norm == length else float("inf")
    if scale * max(STEPS) * size < least:
        return None
    best = float("inf")
    for step in STEPS:
        ends = []
        for sign in (1, -1):
            moved = block + sign * step * size / length * along
            weight.data.index_copy_(axis, index, moved)
            ends.append(value())
        weight.data.index_copy_(axis, index, block)
        rise = (ends[0] - ends[1]) / (2 * step * size)
        best = min(best, max(abs(rise - norm), abs(length - norm)) / scale)
        if best < ENOUGH:
            break
    return best


def _slopes(
    twin: nn.Module,
    sites: Sequence[Any],
    given: Mapping[str, Any],
    objective: Objective,
    roles: Sequence[str],
) -> dict[nn.Module, Tensor]:
    """The gradient of every weight, by autograd."""
    modules = list(dict.fromkeys(site.module(role) for site in sites for role in roles))
    for module in modules:
        module.weight.requires_grad_()
    with torch.enable_grad():
        value = objective(twin(**given))
        found = torch.autograd.grad(value, [m.weight for m in modules], allow_unused=True)
    for module in modules:
        module.weight.requires_grad_(False)
    return {m: torch.zeros_like(m.weight) if g is None else g for m, g in zip(modules, found)}


def _twin(model: nn.Module, sites: Sequence[Any]) -> tuple[Any, list[Any]]:
    """A copy in float64, and the same sites in it."""
    twin = copy.deepcopy(model).to("cpu", torch.float64)
    names = {site.name for site in sites}
    return twin, [site for site in find_sites(twin, "heads") if site.name in names]


class _Float64(TorchFunctionMode):
    """Norms, softmaxes and rotations that go through float32 whatever the model is in stay in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = Tensor.double if func == Tensor.float else func
        args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
        named = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        return func(*args, **named)


def _float64(batch: Mapping[str, Any]) -> dict[str, Any]:
    out = {}
    for name, value in batch.items():
        if isinstance(value, Tensor):
            value = value.cpu()
            value = value.double() if value.is_floating_point() else value
        out[name] = value
    return out
