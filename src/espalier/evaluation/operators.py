"""What single operations cost in closed form: multiply-accumulates, weights, activations.

>>> convolution(3, 64, (7, 7), (224, 224), stride=2, padding=3).macs
118013952
>>> transformer_layer(batch=1, tokens=128, width=768, heads=12, size=64, neurons=3072).macs
931135488
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ..core.errors import InvalidValueError


@dataclass(frozen=True)
class Operator:
    """Counts of one operation. Weights include biases; activations exist only while it runs."""

    macs: int
    weights: int = 0
    reads: int = 0
    writes: int = 0
    peak: int = 0  # the most that any single operation in it reads and writes

    @property
    def activations(self) -> int:
        """Elements of the inputs and outputs that exist at the same time."""
        return self.peak or self.reads + self.writes

    def bits(self, width: int = 32) -> int:
        """Return the storage of weights and activations at so many bits a number."""
        return width * (self.weights + self.activations)


def linear(inputs: int, outputs: int, rows: int = 1, *, bias: bool = False) -> Operator:
    """Return the cost of a linear layer on so many rows: batch times tokens."""
    weights = inputs * outputs + outputs * bias
    return Operator(rows * inputs * outputs, weights, rows * inputs, rows * outputs)


def convolution(
    channels: int,
    filters: int,
    kernel: tuple[int, ...],
    size: tuple[int, ...],
    *,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    groups: int = 1,
    batch: int = 1,
    bias: bool = False,
) -> Operator:
    """Return the cost of a convolution of any number of dimensions over inputs of a size."""
    strides = stride if isinstance(stride, tuple) else (stride,) * len(size)
    pads = padding if isinstance(padding, tuple) else (padding,) * len(size)
    out = [(n + 2 * pad - k) // step + 1 for n, k, step, pad in zip(size, kernel, strides, pads)]
    if min(out) < 1 or channels % groups or filters % groups:
        raise InvalidValueError(
            f"no convolution of `size` {size} with kernel {kernel}, {channels} channels, {filters} filters "
            f"and {groups} groups: its output would have size {tuple(out)}",
            "size",
        )
    weights = filters * (channels // groups) * prod(kernel)
    written = batch * filters * prod(out)
    return Operator(
        batch * prod(out) * weights, weights + filters * bias, batch * channels * prod(size), written
    )


def attention_products(
    batch: int, queries: int, keys: int, heads: int, size: int, products: int = 2
) -> Operator:
    """Return the cost of attention scores and of the sums of values: no weights, a map for each head."""
    vectors, maps = batch * heads * size, batch * heads * queries * keys
    macs = products * batch * heads * queries * keys * size
    # scores read queries and keys and write maps; the sum reads maps and values and writes a context
    scores, context = vectors * (queries + keys) + maps, maps + vectors * (keys + queries)
    writes = maps + vectors * queries
    return Operator(macs, 0, vectors * (queries + 2 * keys), writes, max(scores, context))


def transformer_layer(
    *, batch: int, tokens: int, width: int, heads: int, size: int, neurons: int
) -> Operator:
    """Return the cost of one encoder layer, which may have lost heads and neurons.

    Of a full one with neurons = 4·width this is 12·B·L·E² + 2·B·L²·E.
    """
    rows, inner = batch * tokens, heads * size
    projections = [linear(width, inner, rows)] * 3 + [linear(inner, width, rows)]
    network = [linear(width, neurons, rows), linear(neurons, width, rows)]
    return total([*projections, attention_products(batch, tokens, tokens, heads, size), *network])


def total(operators: Iterable[Operator]) -> Operator:
    """Add up operations that run one after another; activations are those of the largest."""
    listed = list(operators)
    sums = {
        name: sum(getattr(one, name) for one in listed) for name in ("macs", "weights", "reads", "writes")
    }
    return Operator(**sums, peak=max((one.activations for one in listed), default=0))


@dataclass(frozen=True)
class SparseMacs:
    """Multiply-accumulates of which neither factor is zero.

    `expected` holds if zeros of weights and activations are independent. It is not a bound: `low` and `high`
    are, and both occur, where zeros avoid each other and where they meet.
    """

    expected: float
    low: float
    high: float


def sparse_macs(macs: float, weights: float = 0.0, activations: float = 0.0) -> SparseMacs:
    """Return what is left of dense MACs where fractions of `weights` and `activations` are zero."""
    for name, share in {"weights": weights, "activations": activations}.items():
        if not 0 <= share <= 1:
            raise InvalidValueError(f"`{name}` is a fraction of zeros from 0 to 1; got {share}", name)
    kept = (1 - weights) * (1 - activations)
    low, high = max(0.0, 1 - weights - activations), min(1 - weights, 1 - activations)
    return SparseMacs(macs * kept, macs * low, macs * high)


def count_nonzero_macs(weight: Tensor, x: Tensor) -> int:
    """Return how many products of x @ weight.T have no zero factor; weight is [out, in], x [..., in]."""
    used = (x.reshape(-1, x.shape[-1]) != 0).sum(0, dtype=torch.float64)
    return int((used * (weight != 0).sum(0, dtype=torch.float64)).sum())
