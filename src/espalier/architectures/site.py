"""A site: a place in a loaded model where units can be removed, by the layouts of its weights."""

import re
from collections.abc import Callable
from functools import cache, lru_cache
from math import prod
from typing import Any, Literal, Protocol

import torch
from einops import rearrange
from torch import Tensor, nn

from ..core.errors import UnknownNameError, UnsupportedError
from .table import Place, UnitSpec

Saliency = Callable[[Tensor, Tensor | None], Tensor]  # element-wise, of a weight and its gradient
Reads = Literal["hidden", "encoder", "ids", "channels"]


class AnySite(Protocol):
    """What units of every target have in common."""

    @property
    def name(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def units(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def matrices(self) -> list[Tensor]: ...
    def fold(self, saliency: Saliency) -> Tensor: ...


class Site:
    """The heads or neurons of one block. `weight("q")` is arranged by unit, whether fused or not.

    `path` is where the block is; the name has its number in the unpruned model, `numbered` if that differs.
    """

    def __init__(
        self, path: str, spec: UnitSpec, block: nn.Module, *, uses: int = 1, numbered: str | None = None
    ):
        self.path, self.spec, self.block, self.uses = path, spec, block, uses
        self.name, self.target = f"{numbered or path}/{spec.name}", spec.target
        self.places = {role: place for role, place in spec.places.items() if has_module(block, place)}
        owner = block.get_submodule(spec.module)
        self.sizes = {letter: int(getattr(owner, name)) for letter, name in spec.sizes.items()}

    def __repr__(self) -> str:
        return f"Site({self.name!r}, units={self.units})"

    @property
    def units(self) -> int:
        layout = self.places["write"].layout
        size = self.module("write").weight.shape[unit_axis(layout)]
        return size // prod(self.sizes.get(f, 1) for _, fs in parse(layout)[unit_axis(layout)] for f in fs)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.units,)

    @property
    def uncuttable(self) -> str:
        """Why the units can be gated but not cut; empty if they can."""
        return self.spec.uncuttable

    @property
    def group(self) -> int:
        """Query heads per unit: 1, or more where queries share their keys and values."""
        return self.sizes.get("g", 1)

    @property
    def attention(self) -> nn.Module:
        """Heads: the module that attends."""
        return self.block.get_submodule(self.spec.module)

    def module(self, role: str) -> Any:
        """Return the linear layer that holds a role's weight."""
        return self.block.get_submodule(self._place(role).module)

    def axis(self, role: str) -> int:
        """Return the axis of the role's weight along which the units are."""
        return unit_axis(self._place(role).layout)

    def index(self, role: str) -> Tensor:
        """Return which channels of that axis belong to which unit, [units, channels]."""
        size = self.module(role).weight.shape[self.axis(role)]
        sizes = tuple(self.sizes.items())
        return channels(self._place(role).layout, size, sizes, "" if role in self.places else role)

    def weight(self, role: str) -> Tensor:
        """Return one role's weight by unit, [units, channels, width]."""
        return self._by_unit(role, self.module(role).weight)

    def grad(self, role: str) -> Tensor:
        """Return one role's gradient by unit, [units, channels, width]."""
        return self._by_unit(role, self.module(role).weight.grad)

    @property
    def matrices(self) -> list[Tensor]:
        """Every weight that holds a share of the units."""
        return [self.module(role).weight for role in self.places]

    def fold(self, saliency: Saliency) -> Tensor:
        """Return an element-wise saliency(weight, grad) summed over all weights of each unit, [units]."""
        total = torch.zeros(self.units, dtype=torch.float64)
        for role, w in zip(self.places, self.matrices):
            by_channel = saliency_of(w, saliency).sum(1 - self.axis(role), dtype=torch.float64).cpu()
            total += by_channel[self.index(role)].sum(1)
        return total

    def owners(self) -> Tensor:
        """Return the unit that each input channel of the writer belongs to, [channels]."""
        index = self.index("write")
        out = torch.empty(index.numel(), dtype=torch.long)
        out[index.flatten()] = torch.arange(self.units).repeat_interleave(index.shape[1])
        return out

    def spread(self, gate: Tensor) -> Tensor:
        """Repeat a number per unit for each input channel of the writer: [..., units] -> [..., channels]."""
        return gate[..., self.owners().to(gate.device)]

    def parameters_per_unit(self) -> int:
        """Return how many parameters are removed with one unit."""
        readers = [role for role in self.places if role != "write"]
        biased = [role for role in readers if getattr(self.module(role), "bias", None) is not None]
        return self._weights_per_unit() + sum(self.index(role).shape[1] for role in biased)

    def macs_per_unit(self, tokens: int) -> int:
        """Return the multiply-accumulates of a unit for one sequence: its weights and its attention."""
        attending = (
            self.spec.products * tokens * self.group * self.sizes["d"] if self.target == "heads" else 0
        )
        return self.uses * tokens * (self._weights_per_unit() + attending)

    def _weights_per_unit(self) -> int:
        widths = [self.module(role).weight.shape[1 - self.axis(role)] for role in self.places]
        return sum(self.index(role).shape[1] * width for role, width in zip(self.places, widths))

    def _by_unit(self, role: str, tensor: Tensor) -> Tensor:
        return tensor.movedim(self.axis(role), 0)[self.index(role).to(tensor.device)]

    def _place(self, role: str) -> Place:
        if role in self.places:
            return self.places[role]
        inside = {r: place for name, place in self.places.items() for r in roles(name, place.layout)}
        if role not in inside:  # "q" may be inside a fused "qkv"
            raise UnknownNameError(f"role of {self.name}", role, inside)
        return inside[role]


class WeightSite:
    """A whole matrix whose units are its single weights.

    `reads` is what it is applied to: "hidden" states of its own stack, those of the "encoder" (keys and
    values of cross-attention), "ids" (an embedding) or "channels" (the scale of a norm). `mask` names the
    mask of the tokens it reads, see `Architecture.masks`.
    """

    target = "weights"

    def __init__(self, name: str, linear: Any, reads: Reads = "hidden", mask: str = "attention_mask"):
        self.name, self.linear, self.reads, self.mask = name, linear, reads, mask

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
        """The axis that is summed over: 1 for a Linear, 0 for GPT-2's transposed Conv1D;
        of a convolution the channels it reads.

        An embedding has a row for each token, as the output layer that may share it; a norm is one row.
        """
        return input_axis(self.linear)

    @property
    def matrices(self) -> list[Tensor]:
        return [self.linear.weight]

    def fold(self, saliency: Saliency) -> Tensor:
        """Return an element-wise saliency(weight, grad) in the shape of the matrix."""
        return saliency_of(self.linear.weight, saliency)


def input_axis(linear: Any) -> int:
    """Return the axis of a layer's weight that is summed over."""
    return 0 if hasattr(linear, "nf") else min(int(linear.weight.dim()) - 1, 1)


def has_module(block: nn.Module, place: Place) -> bool:
    """Return whether the block has the module of a place."""
    try:
        return block.get_submodule(place.module) is not None
    except AttributeError:
        return False


def saliency_of(w: Tensor, saliency: Saliency) -> Tensor:
    """Return an element-wise saliency(weight, grad) of a weight."""
    return saliency(wide(w.detach()), None if w.grad is None else wide(w.grad))


def wide(tensor: Tensor) -> Tensor:
    """Convert to at least float32: sums lose too much in bfloat16, and squares tie where numbers do not."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


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
