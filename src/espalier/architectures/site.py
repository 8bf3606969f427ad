"""A site: a place in a living model where units can be removed, which answers unit by unit."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..core.errors import EspalierError
from .layout import channels, parse, roles, unit_axis

if TYPE_CHECKING:
    from .table import At, Part


class Site:
    """A part found in a living model. Ask it for `weight("q")`: fused or not, it answers unit by unit."""

    def __init__(self, path: str, part: Part, block: nn.Module, *, uses: int = 1):
        self.path, self.part, self.block, self.uses = path, part, block, uses
        self.name, self.target = f"{path}/{part.name}", part.target
        self.places = {r: at for r, at in part.places.items() if has(block, at.path)}
        owner = block.get_submodule(part.module)
        self.sizes = {letter: int(getattr(owner, name)) for letter, name in part.sizes.items()}

    def __repr__(self) -> str:
        return f"Site({self.name!r}, units={self.units})"

    @property
    def units(self) -> int:
        at = self.places["write"]
        size = self.module("write").weight.shape[unit_axis(at.layout)]
        return size // prod(
            self.sizes.get(f, 1) for _, fs in parse(at.layout)[unit_axis(at.layout)] for f in fs
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.units,)

    @property
    def group(self) -> int:
        """Query heads per unit: 1, or more where queries share their keys and values."""
        return self.sizes.get("g", 1)

    @property
    def attention(self) -> nn.Module:
        """Heads: the module that attends."""
        return self.block.get_submodule(self.part.module)

    def module(self, role: str) -> Any:
        return self.block.get_submodule(self._place(role).path.rstrip("?"))

    def axis(self, role: str) -> int:
        """The axis of the role's weight along which units lie."""
        return unit_axis(self._place(role).layout)

    def index(self, role: str) -> Tensor:
        """[units, channels]: which channels of that axis belong to which unit."""
        at = self._place(role)
        size = self.module(role).weight.shape[self.axis(role)]
        sizes = tuple(self.sizes.items())
        return channels(at.layout, size, sizes, "" if role in self.places else role)

    def weight(self, role: str) -> Tensor:
        """[units, channels, width] of one role's weight."""
        return self._split(role, self.module(role).weight)

    def grad(self, role: str) -> Tensor:
        """[units, channels, width] of one role's gradient."""
        return self._split(role, self.module(role).weight.grad)

    @property
    def matrices(self) -> list[Tensor]:
        """Every weight that holds a share of the units."""
        return [self.module(place).weight for place in self.places]

    def fold(self, saliency: Callable[[Tensor, Tensor | None], Tensor]) -> Tensor:
        """[units]: an element-wise saliency f(weight, grad), summed over every weight of each unit."""
        total = torch.zeros(self.units, dtype=torch.float64)
        for place in self.places:
            w = self.module(place).weight
            each = saliency(_wide(w.detach()), None if w.grad is None else _wide(w.grad))
            by_channel = each.sum(1 - self.axis(place), dtype=torch.float64).cpu()
            total += by_channel[self.index(place)].sum(1)
        return total

    def owners(self) -> Tensor:
        """[channels]: the unit that each input channel of the writer belongs to."""
        index = self.index("write")
        out = torch.empty(index.numel(), dtype=torch.long)
        out[index.flatten()] = torch.arange(self.units).repeat_interleave(index.shape[1])
        return out

    def spread(self, gate: Tensor) -> Tensor:
        """[..., units] -> [..., channels]: a number per unit becomes one per input channel of the writer."""
        return gate[..., self.owners().to(gate.device)]

    def parameters_per_unit(self) -> int:
        """How many parameters leave with one unit."""
        total = 0
        for place, at in self.places.items():
            module, per_unit = self.module(place), self.index(place).shape[1]
            other = module.weight.shape[1 - unit_axis(at.layout)]
            biased = place != "write" and getattr(module, "bias", None) is not None
            total += per_unit * (other + biased)
        return total

    def macs_per_unit(self, tokens: int) -> int:
        """Multiply-accumulates of a unit for one sequence: its weights at every token, and its attention."""
        linear = sum(
            self.index(place).shape[1] * self.module(place).weight.shape[1 - unit_axis(at.layout)]
            for place, at in self.places.items()
        )
        attending = 2 * tokens * self.group * self.sizes["d"] if self.target == "heads" else 0
        return self.uses * tokens * (linear + attending)

    def _split(self, role: str, tensor: Tensor) -> Tensor:
        return tensor.movedim(self.axis(role), 0)[self.index(role).to(tensor.device)]

    def _place(self, role: str) -> At:
        if role in self.places:
            return self.places[role]
        for name, at in self.places.items():  # "q" inside a fused "qkv"
            if role in roles(name, at.layout):
                return at
        there = [r for name, at in self.places.items() for r in roles(name, at.layout)]
        raise EspalierError(f"{self.name} has no {role!r}. It has: {', '.join(there)}")


class WeightSite:
    """A whole matrix whose units are its single weights.

    `reads` says what it is applied to: "hidden" states of its own stack, those of the "encoder" (keys and
    values of cross-attention), "ids" (an embedding) or "channels" (the scale of a norm).
    """

    target = "weights"

    def __init__(self, name: str, linear: Any, layout: str, reads: str = "hidden"):
        self.name, self.linear, self.layout, self.reads = name, linear, layout, reads

    def __repr__(self) -> str:
        return f"WeightSite({self.name!r}, shape={self.shape})"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.linear.weight.shape)

    @property
    def units(self) -> int:
        return int(self.linear.weight.numel())

    @property
    def input_axis(self) -> int:
        """The axis that is summed over: 1 for a Linear, 0 for GPT-2's transposed Conv1D.

        An embedding has a row for each token, as the output layer that may share it; a norm is one row.
        """
        return input_axis(self.linear)

    @property
    def matrices(self) -> list[Tensor]:
        return [self.linear.weight]

    def fold(self, saliency: Callable[[Tensor, Tensor | None], Tensor]) -> Tensor:
        w = self.linear.weight
        return saliency(_wide(w.detach()), None if w.grad is None else _wide(w.grad))


def input_axis(linear: Any) -> int:
    """The axis of a layer's weight that is summed over."""
    return 0 if hasattr(linear, "nf") else int(linear.weight.dim()) - 1


def _wide(tensor: Tensor) -> Tensor:
    """At least float32: squares of bfloat16 numbers tie where the numbers do not."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def has(block: nn.Module, path: str) -> bool:
    try:
        return block.get_submodule(path.rstrip("?")) is not None
    except AttributeError:
        return False
