"""What a model costs: units, parameters, multiply-accumulates in closed form from its sites, and zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..architectures.table import sites as find_sites

TOKENS = 128  # the sequence length costs are quoted at unless you say another


@dataclass(frozen=True)
class Cost:
    """Units, parameters of the whole model, and multiply-accumulates of its blocks for one sequence."""

    heads: int
    neurons: int
    parameters: int
    macs: int
    tokens: int = TOKENS

    def to(self, after: Cost) -> str:
        """`heads 144 → 72 · parameters 109.48M → 95.31M (−12.9%) · …`"""
        parts = [
            f"{name} {change(getattr(self, name), getattr(after, name))}"
            for name in ("heads", "neurons", "parameters")
        ]
        parts.append(f"block MACs at {self.tokens} tokens {change(self.macs, after.macs)}")
        return " · ".join(parts)

    def dict(self) -> dict[str, int]:
        return asdict(self)


def cost(model: Any, tokens: int = TOKENS) -> Cost:
    """Count, do not run. Embeddings are look-ups; what sits on top of the blocks is not in the MACs."""
    found = find_sites(model)
    return Cost(
        heads=sum(s.units for s in found if s.target == "heads"),
        neurons=sum(s.units for s in found if s.target == "neurons"),
        parameters=parameters(model),
        macs=sum(s.units * s.macs_per_unit(tokens) for s in found),
        tokens=tokens,
    )


def parameters(model: Any) -> int:
    """Every parameter once, however many modules share it."""
    return sum(p.numel() for p in model.parameters())


@dataclass(frozen=True)
class Sparsity:
    """Counts of zeros, and what they are worth. A ratio of matrices alone flatters: embeddings stay dense."""

    zeros: int  # in the matrices
    weights: int  # of the matrices
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
        """{"matrices", "model", "bitmap"}: how many times smaller if zeros cost nothing; the third is the
        model again, paying one bit a weight to say where they are."""
        return {
            "matrices": _times(self.weights, self.weights - self.zeros),
            "model": _times(self.parameters, self.parameters - self.all_zeros),
            "bitmap": _times(self.bits, self.packed_bits),
        }

    def __str__(self) -> str:
        smaller = self.compression
        return (
            f"zeros: {self.of_matrices:.1%} of {self.weights:,} weights in the matrices "
            f"({smaller['matrices']:.2f}×) · {self.of_model:.1%} of {self.parameters:,} parameters "
            f"({smaller['model']:.2f}×) · with bitmaps {smaller['bitmap']:.2f}× smaller"
        )


def sparsity(model: Any, sites: Sequence[Any] | None = None) -> Sparsity:
    """Count the zeros. The matrices are those of the blocks, unless you name others by their sites."""
    chosen = find_sites(model, "weights") if sites is None else sites
    matrices = {id(site.linear.weight) for site in chosen}
    counted = dict.fromkeys(("zeros", "weights", "all_zeros", "parameters", "bits", "packed"), 0)
    for p in model.parameters():  # each once, however many modules share it
        zeros, size, bits = int((p == 0).sum()), p.numel(), 8 * p.element_size()
        counted["parameters"] += size
        counted["all_zeros"] += zeros
        if id(p) in matrices:
            counted["weights"] += size
            counted["zeros"] += zeros
        counted["bits"] += size * bits
        counted["packed"] += min(size * bits, (size - zeros) * bits + size)
    return Sparsity(*counted.values())


def _times(before: int, after: int) -> float:
    return before / after if after else float("inf") if before else 1.0


def short(number: float) -> str:
    """1234567 -> '1.23M'"""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{number:g}"


def change(before: int, after: int) -> str:
    if before == after:
        return short(before)
    percent = f" (−{100 * (1 - after / before):.1f}%)" if before > after else ""
    return f"{short(before)} → {short(after)}{percent}"
