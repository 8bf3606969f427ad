"""Ridge least squares from sums alone: what a matrix must become so that a remaining error vanishes.

Rows of inputs x and errors d are added in any number of parts; memory does not grow with them. Every fit
returns a change of the matrix and of its bias, and the penalty is on the change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..engine.hessians import add_products, mirrored

Change = tuple[Tensor, Tensor]  # of a matrix [inputs, outputs] and of its bias [outputs]


@dataclass
class Sums:
    """What least squares needs of rows x [rows, inputs] and d [rows, outputs], in float64."""

    lower: Tensor  # of the products of inputs: they are symmetric
    xd: Tensor
    x: Tensor
    d: Tensor
    dd: float = 0.0
    rows: int = 0
    _whole: Tensor | None = field(default=None, repr=False)

    @classmethod
    def zeros(cls, inputs: int, outputs: int, device: torch.device | None = None) -> Sums:
        """Return the sums of no rows."""

        def make(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        return cls(make(inputs, inputs), make(inputs, outputs), make(inputs), make(outputs))

    def add(self, x: Tensor, d: Tensor) -> None:
        """Add rows."""
        x, d = x.double(), d.double()
        add_products(self.lower, x)
        self._whole = None
        self.xd.addmm_(x.T, d)
        self.x += x.sum(0)
        self.d += d.sum(0)
        self.dd += float(d.square().sum())
        self.rows += len(x)

    @property
    def xx(self) -> Tensor:
        """The products of all pairs of inputs."""
        self._whole = mirrored(self.lower) if self._whole is None else self._whole
        return self._whole

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.lower + other.lower,
            self.xd + other.xd,
            self.x + other.x,
            self.d + other.d,
            self.dd + other.dd,
            self.rows + other.rows,
        )

    def centred(self, bias: bool) -> tuple[Tensor, Tensor]:
        """Return xx and xd around the means if there is a bias to take them up, else as they are."""
        if not bias or not self.rows:
            return self.xx, self.xd
        return (
            self.xx - torch.outer(self.x, self.x) / self.rows,
            self.xd - torch.outer(self.x, self.d) / self.rows,
        )

    def loss(self, change: Change) -> float:
        """Return the mean square of what a change leaves of d."""
        w, b = change
        inner = (w * (self.xx @ w)).sum() - 2 * (w * self.xd).sum()
        outer = 2 * (self.x @ w) @ b - 2 * b @ self.d + self.rows * b @ b
        return (self.dd + float(inner + outer)) / max(1, self.rows * self.d.numel())


def fit_bias(sums: Sums, weight: Tensor, owners: Tensor, bias: bool, strength: float) -> Change:
    """Move the bias by the mean error."""
    change = sums.d / max(1, sums.rows) if bias else torch.zeros_like(sums.d)
    return torch.zeros_like(weight), change


def fit_scale(sums: Sums, weight: Tensor, owners: Tensor, bias: bool, strength: float) -> Change:
    """Multiply each unit, whose inputs `owners` lists, by one number."""
    units = int(owners.max()) + 1 if owners.numel() else 0
    owners = owners.to(weight.device)
    pairs = sums.xx * (weight @ weight.T)
    left = weight.new_zeros(units, len(owners)).index_add_(0, owners, pairs)
    left = weight.new_zeros(units, units).index_add_(1, owners, left)
    right = weight.new_zeros(units).index_add_(0, owners, (sums.xd * weight).sum(1))
    factors = _solve(left, right[:, None], strength)[:, 0]
    return factors[owners][:, None] * weight, torch.zeros_like(sums.d)


def fit_matrix(sums: Sums, weight: Tensor, owners: Tensor, bias: bool, strength: float) -> Change:
    """Change every weight, and the bias where there is one."""
    change = _solve(*sums.centred(bias), strength)
    if not bias or not sums.rows:
        return change, torch.zeros_like(sums.d)
    return change, (sums.d - sums.x @ change) / sums.rows


Fit = Callable[[Sums, Tensor, Tensor, bool, float], Change]
FITS: dict[str, Fit] = {"bias": fit_bias, "scale": fit_scale, "refit": fit_matrix}


def _solve(left: Tensor, right: Tensor, strength: float) -> Tensor:
    """Solve with `strength` times the mean of the diagonal added to it."""
    if not left.numel():
        return right
    added = strength * left.diagonal().mean().clamp(min=torch.finfo(left.dtype).tiny)
    damped = left + added * torch.eye(len(left), dtype=left.dtype, device=left.device)
    factor, failed = torch.linalg.cholesky_ex(damped)
    return torch.linalg.lstsq(damped, right).solution if failed else torch.cholesky_solve(right, factor)
