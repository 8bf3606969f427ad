"""Layouts: how units are arranged in a weight, in a notation in which `u` is the unit.

(u d) m                      unit by unit, d channels each, by the model width
(u g d) m                    each unit is a key-value group of g query heads
m ([q k v] u d)              transposed, q, k and v stacked
(u [q k v] d) m              q, k and v interleaved, head by head
(q: u g d + k: u d + v: u d) m      q, k and v of different sizes, one after the other
"""

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from math import prod

import torch
from einops import rearrange
from torch import Tensor

from ..core.errors import UnsupportedError


@cache
def parse(layout: str) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], ...]:
    """Return the axes of a layout, each a sum of (role, factors); a factor `[q k v]` keeps its brackets."""
    axes = []
    for text in re.findall(r"\(.*?\)|\S+", layout):
        terms = []
        for term in text.strip("()").split("+"):
            role, colon, factors = term.rpartition(":")
            terms.append((role.strip() if colon else "", tuple(re.findall(r"\[.*?\]|\w+", factors))))
        axes.append(tuple(terms))
    return tuple(axes)


def unit_axis(layout: str) -> int:
    """Return the axis along which the units are."""
    return next(i for i, axis in enumerate(parse(layout)) if any("u" in factors for _, factors in axis))


def roles(name: str, layout: str) -> list[str]:
    """Return the roles in one weight: `["q", "k", "v"]` when they are fused, else its own name."""
    found: list[str] = []
    for role, factors in parse(layout)[unit_axis(layout)]:
        stack = next((f for f in factors if f.startswith("[")), "")
        found += stack.strip("[]").split() or ([role] if role else [])
    return found or [name]


@lru_cache(maxsize=1024)
def channels(layout: str, size: int, sizes: tuple[tuple[str, int], ...], role: str = "") -> Tensor:
    """Return which channels of the unit axis belong to which unit, [units, channels per unit].

    The result is cached: do not change it in place.
    """
    terms, known_sizes = parse(layout)[unit_axis(layout)], dict(sizes)

    def length(factor: str) -> int:
        return len(factor.strip("[]").split()) if factor.startswith("[") else known_sizes[factor]

    per_unit = [prod(length(f) for f in factors if f != "u") for _, factors in terms]
    units, rest = divmod(size, sum(per_unit))
    if rest:
        raise UnsupportedError(f"{size} channels do not divide into units of {sum(per_unit)} ({layout})")
    out, start = [], 0
    for (name, factors), width in zip(terms, per_unit):
        if role and name and role != name:
            start += units * width
            continue
        stack = next((f for f in factors if f.startswith("[")), "")
        letters = ["s" if f == stack else f for f in factors]
        known = {letter: length(f) for letter, f in zip(letters, factors) if f != "u"} | {"u": units}
        inner = " ".join(one for one in letters if one not in "su")
        block = torch.arange(start, start + units * width)
        block = rearrange(block, f"({' '.join(letters)}) -> u {'s' if stack else '1'} ({inner})", **known)
        if role in stack.strip("[]").split():
            block = block[:, [stack.strip("[]").split().index(role)]]
        out.append(block.flatten(1))
        start += units * width
    return torch.cat(out, 1)


def formula(text: str, values: Mapping[str, int]) -> int:
    """Evaluate `u*d`, `num_hidden_layers/num_hidden_groups` or `pad_token_id+1` over named numbers."""
    total = 0
    for term in text.split("+"):
        result = 1
        for sign, name in re.findall(r"([*/]?)(\w+)", term):
            value = int(name) if name.isdigit() else values[name]
            result = result // value if sign == "/" else result * value
        total += result
    return total
