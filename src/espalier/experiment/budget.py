"""Budgets: what a model may cost, in what a user pays for, and what that leaves for its units."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..architectures.site import Site
from ..architectures.sites import STACKED
from ..architectures.sites import sites as find_sites
from ..architectures.stack import Part, StackSite
from ..core.errors import InvalidValueError
from ..core.mask import Mask
from ..evaluation.cost import TOKENS, cost, parameters
from ..selection.budget import total_cost
from .latency_table import LatencyTable

KINDS = ("macs", "params", "size", "speedup", "latency")
UNITS = {
    "size": {"kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30, "b": 1.0},
    "latency": {"us": 1e-6, "ms": 1e-3, "s": 1.0},
}
VALID = {
    "macs": "a fraction of the blocks' multiply-accumulates above 0 and below 1, as 0.5",
    "params": "a fraction of the parameters above 0 and below 1, as 0.5",
    "size": "bytes of the file of weights with their unit, as 40MB",
    "speedup": "a number above 1, as 2",
    "latency": "seconds with their unit, as 5ms",
}
ACCURATE = 0.05  # how far a measured speed may lie from the one asked for


@dataclass(frozen=True)
class Budget:
    """One limit: its kind, one of KINDS, and its number; sizes are in bytes, latencies in seconds."""

    kind: str
    value: float

    def __str__(self) -> str:
        if self.kind == "size":
            return f"{self.value / 1e6:.4g}MB"
        return f"{1e3 * self.value:.4g}ms" if self.kind == "latency" else f"{self.value:g}"

    @property
    def timed(self) -> bool:
        """Whether it is met by measuring rather than by counting."""
        return self.kind in ("speedup", "latency")


def parse_budgets(given: Mapping[str, Any]) -> list[Budget]:
    """Return the budgets named in keywords: several only of one kind, as `speedup` "1.5,2,3,4"."""
    named = {kind: value for kind, value in given.items() if value is not None}
    if len(named) > 1:
        first, second, *_ = named
        raise InvalidValueError(f"give one budget: `{first}` or `{second}`", second)
    found = []
    for kind, value in named.items():
        parts = str(value).split(",") if isinstance(value, str) else value
        for part in parts if isinstance(parts, (list, tuple)) else [parts]:
            found.append(Budget(kind, _number(kind, part)))
        if len(set(found)) < len(found):
            raise InvalidValueError(f"`{kind}` names a budget twice: {value}", kind)
    return sorted(found, key=lambda one: one.value, reverse=named.keys() != {"speedup"})


def _number(kind: str, value: Any) -> float:
    text = str(value).strip().lower()
    match = re.fullmatch(r"([0-9.]+(?:e-?[0-9]+)?)\s*([a-z]*)", text)
    units = UNITS.get(kind, {"": 1.0, "x": 1.0} if kind == "speedup" else {"": 1.0})
    try:
        number = float(match[1]) * units[match[2]] if match else None
    except (KeyError, ValueError):
        number = None
    low, high = {"speedup": (1.0, float("inf")), "macs": (0.0, 1.0), "params": (0.0, 1.0)}.get(
        kind, (0.0, float("inf"))
    )
    if number is None or not low < number < high:
        raise InvalidValueError(f"`{kind}` is {VALID[kind]}; got {value!r}", kind)
    return number


@dataclass(frozen=True)
class Currency:
    """What one kind of budget counts: the cost of a unit of each site, and what units cannot change."""

    costs: dict[str, Any]  # a number, or one for each unit
    fixed: float
    whole: float  # everything kept
    least: float = 0.0  # of units that have to stay: of the blocks of a stack one

    @property
    def floor(self) -> float:
        """What is left of everything that can be removed."""
        return self.fixed + self.least

    def left(self, asked: float, budget: Budget) -> float:
        """Return what the units may cost; raise if the rest alone costs more, or nothing is to be removed."""
        if asked >= self.whole and budget.kind in ("size", "latency"):
            raise InvalidValueError(f"`{budget.kind}` {budget}: the model meets it already", budget.kind)
        if asked > self.fixed and asked >= self.floor:
            return asked - self.fixed
        share = self.floor / self.whole
        reach = {
            "speedup": lambda: f"be at most {self.whole / self.floor:.3g} times as fast",
            "latency": lambda: f"still take {1e3 * self.floor:.3g} ms",
            "size": lambda: f"still be {self.floor / 1e6:.4g} MB",
        }.get(budget.kind, lambda: f"still be {share:.3g} of it")
        raise InvalidValueError(
            f"`{budget.kind}` {budget} cannot be reached: without everything that may be removed the "
            f"model would {reach()}",
            budget.kind,
        )


def check_room(
    sites: Sequence[Any], currency: Currency, left: float, budget: Budget, multiple: int, least_heads: float
) -> None:
    """Raise unless the smallest that may be kept fits into what is left for units: a head or some neurons.

    Of blocks and sublayers a currency knows itself what has to stay.
    """
    units = [site for site in sites if site.target not in STACKED]
    heads = [site for site in units if site.target == "heads" and least_heads]
    sizes = [1 if site.target != "neurons" else min(site.units, multiple) for site in heads or units]
    costs = [size * currency.costs[site.name] for size, site in zip(sizes, heads or units)]
    if costs and left < min(costs):
        raise InvalidValueError(
            f"`{budget.kind}` {budget} leaves room for no unit: the smallest that may stay takes "
            f"{min(costs) / currency.whole:.2g} of what is counted, besides what cannot be removed",
            budget.kind,
        )


def count_cost(model: Any, kind: str, itemsize: int) -> float:
    """Return the MACs, parameters or bytes of a model; bytes are those of the file of its weights."""
    if kind == "macs":
        return float(cost(model).macs)
    return file_bytes(model, itemsize) if kind == "size" else float(parameters(model))


def file_bytes(model: Any, itemsize: int) -> float:
    """Return the bytes of a model's safetensors file, or a few more: its tensors and its header."""
    stored = model.state_dict()
    sizes = {t: itemsize if t.is_floating_point() else t.element_size() for t in stored.values()}
    each = {t.data_ptr(): t.numel() * size for t, size in sizes.items()}
    most = 2**40  # no place in a file has more digits
    about = {"dtype": "BF16", "data_offsets": [most, most]}
    header = {name: about | {"shape": list(tensor.shape)} for name, tensor in stored.items()}
    return float(sum(each.values()) + 8 + len(json.dumps({"__metadata__": {"format": "pt"}, **header})))


def count_currency(model: Any, sites: Sequence[Site | StackSite], kind: str, itemsize: int) -> Currency:
    """Return what MACs, parameters or bytes count."""
    costs: dict[str, Any] = {}
    size = itemsize if kind == "size" else 1
    for site in sites:
        if isinstance(site, StackSite):
            each = [_part_cost(part, model, kind) for part in site.parts]
            costs[site.name] = size * torch.tensor(each, dtype=torch.float64)
        else:
            one = site.macs_per_unit(TOKENS) if kind == "macs" else site.parameters_per_unit()
            costs[site.name] = float(size * one)
    whole = count_cost(model, kind, itemsize)
    least = sum(float(costs[site.name].min()) for site in sites if site.target == "layers")
    return Currency(costs, whole - total_cost(Mask.ones(sites), costs), whole, least)


def _part_cost(part: Part, model: Any, kind: str) -> float:
    """Return what goes with a block or a sublayer."""
    if kind != "macs":
        return float(sum(p.numel() for p in part.parameters))
    inside = [site for site in find_sites(model) if site.block is part.block and site.target != "slots"]
    own = inside if part.sublayer is None else [part.sublayer]
    return float(sum(site.units * site.macs_per_unit(TOKENS) for site in own))


def time_currency(table: LatencyTable, sites: Sequence[Site]) -> Currency:
    """Return what seconds count; the fixed part is the pass of a model without units."""
    nothing = Mask({site.name: ~ones for site, ones in zip(sites, Mask.ones(sites).values())})
    return Currency(table.costs(sites), table.predict(sites, nothing), table.seconds)


def search_units(
    choose: Callable[[float], Mask], predict: Callable[[Mask], float], whole: float, target: float
) -> tuple[float, Mask]:
    """Return the highest cost of units, and their mask, whose predicted seconds are at most `target`.

    It comes from above, as lower budgets have to be scored first.
    """
    high, low = whole, whole
    mask = choose(low)
    while predict(mask) > target and low > 1e-3 * whole:
        high, low = low, 0.9 * low
        mask = choose(low)
    for _ in range(12):
        middle = (high + low) / 2
        if predict(found := choose(middle)) <= target:
            low, mask = middle, found
        else:
            high = middle
    return low, mask
