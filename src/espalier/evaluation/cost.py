"""What a model costs: units, parameters, multiply-accumulates in closed form from its sites, and zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from torch import nn

from ..architectures.sites import sites as find_sites
from ..core.types import PreTrainedModel

if TYPE_CHECKING:
    from ..architectures.site import WeightSite

TOKENS = 128  # the default sequence length of MACs


@dataclass(frozen=True)
class Cost:
    """Units, parameters of the whole model, and multiply-accumulates of its blocks for one sequence."""

    heads: int
    neurons: int
    parameters: int
    macs: int
    tokens: int = TOKENS
    slots: int = 0  # persistent vectors, each a share of every head of its layer

    def to(self, after: Cost) -> str:
        """Describe the change: `heads 144 → 72 · parameters 109.48M → 95.31M (−12.9%) · …`"""
        counted = [name for name in ("heads", "neurons", "slots", "parameters") if name in self.dict()]
        names: dict[str, str] = {name: name for name in counted}
        names["macs"] = f"block MACs at {self.tokens} tokens"
        changes = [(text, getattr(self, name), getattr(after, name)) for name, text in names.items()]
        return " · ".join(f"{text} {_change(before, now)}" for text, before, now in changes)

    def dict(self) -> dict[str, int]:
        """Return the counts by name; slots where there are any."""
        return {name: value for name, value in asdict(self).items() if name != "slots" or value}


def cost(model: PreTrainedModel, tokens: int = TOKENS) -> Cost:
    """Count without running the model. MACs are those of the blocks: no embeddings, no head."""
    found = find_sites(model)
    return Cost(
        heads=sum(s.units for s in found if s.target == "heads"),
        neurons=sum(s.units for s in found if s.target == "neurons"),
        parameters=parameters(model),
        macs=sum(s.units * s.macs_per_unit(tokens) for s in found if s.target != "slots"),
        tokens=tokens,
        slots=sum(s.units for s in found if s.target == "slots"),
    )


def parameters(model: nn.Module) -> int:
    """Count the parameters, each once, however many modules share it."""
    return sum(p.numel() for p in model.parameters())


@dataclass(frozen=True)
class Sparsity:
    """Counts of zeros in the matrices and in the whole model, whose embeddings may be dense."""

    zeros: int  # in the matrices
    weights: int  # in the matrices
    all_zeros: int
    parameters: int
    bits: int  # of the whole model, dense
    packed_bits: int  # the same with a bitmap and the non-zero values, where that is shorter

    @property
    def of_matrices(self) -> float:
        """The fraction of zeros in the matrices."""
        return self.zeros / self.weights if self.weights else 0.0

    @property
    def of_model(self) -> float:
        """The fraction of zeros among all parameters."""
        return self.all_zeros / self.parameters if self.parameters else 0.0

    @property
    def compression(self) -> dict[str, float]:
        """How many times smaller: "matrices" and "model" if zeros cost nothing, "bitmap" with bitmaps."""
        return {
            "matrices": _ratio(self.weights, self.weights - self.zeros),
            "model": _ratio(self.parameters, self.parameters - self.all_zeros),
            "bitmap": _ratio(self.bits, self.packed_bits),
        }

    def __str__(self) -> str:
        smaller = self.compression
        return (
            f"zeros: {self.of_matrices:.1%} of {self.weights:,} weights in the matrices "
            f"({smaller['matrices']:.2f}×) · {self.of_model:.1%} of {self.parameters:,} parameters "
            f"({smaller['model']:.2f}×) · with bitmaps {smaller['bitmap']:.2f}× smaller"
        )


def sparsity(model: PreTrainedModel, sites: Sequence[WeightSite] | None = None) -> Sparsity:
    """Count the zeros. The matrices are those of the given sites, by default all of the blocks."""
    chosen = find_sites(model, "weights") if sites is None else sites
    matrices = {id(site.linear.weight) for site in chosen}
    weights = zeros = every = all_zeros = all_bits = packed = 0
    for p in model.parameters():
        zero, size, bits = int((p == 0).sum()), p.numel(), 8 * p.element_size()
        every += size
        all_zeros += zero
        if id(p) in matrices:
            weights += size
            zeros += zero
        all_bits += size * bits
        packed += min(size * bits, (size - zero) * bits + size)
    return Sparsity(zeros, weights, all_zeros, every, all_bits, packed)


def short(number: float) -> str:
    """Shorten a number: 1234567 is 1.235M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{number:g}"


def _ratio(before: int, after: int) -> float:
    return before / after if after else float("inf") if before else 1.0


def _change(before: int, after: int) -> str:
    if before == after:
        return short(before)
    percent = f" (−{100 * (1 - after / before):.1f}%)" if before > after else ""
    return f"{short(before)} → {short(after)}{percent}"
