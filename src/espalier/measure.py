"""What a model costs: units, parameters, and multiply-accumulates in closed form from its sites."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .anatomy import sites

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
    found = sites(model)
    return Cost(
        heads=sum(s.units for s in found if s.kind == "heads"),
        neurons=sum(s.units for s in found if s.kind == "neurons"),
        parameters=parameters(model),
        macs=sum(s.units * s.macs_per_unit(tokens) for s in found),
        tokens=tokens,
    )


def parameters(model: Any) -> int:
    """Every parameter once, however many modules share it."""
    return sum(p.numel() for p in model.parameters())


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
