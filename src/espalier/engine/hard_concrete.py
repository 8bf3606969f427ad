"""Hard-concrete gates: binary gates with a learned chance to be open (Louizos et al. 2018, arXiv 1712.01312).

A gate is a number log α. In training, with uniform noise u,

    s = σ((ln u − ln(1 − u) + log α) / β)      s̄ = s·(ζ − γ) + γ, clamped to [1e-6, 1]      z = 1 if s̄ ≥ ½

and the gradient of z is that of s̄ (straight-through). Without noise a gate is open if log α ≥ 0. The chance
that z is 1 is σ(log α). The usual penalty charges the chance that s̄ > 0, which is right for soft gates and
too high for hard ones: 0.943 instead of 0.881 at log α = 2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.errors import UnknownNameError

BETA, GAMMA, ZETA = 0.333, -0.1, 1.1
EPSILON = 1e-6
FORMS = ("published", "exact")


def sample(log_alpha: Tensor) -> Tensor:
    """Return gates that are 0 or 1, drawn with torch's random state, whose gradient is that of s̄."""
    u = torch.empty_like(log_alpha).uniform_(EPSILON, 1 - EPSILON)
    soft = torch.sigmoid((u.log() - torch.log1p(-u) + log_alpha) / BETA)
    soft = (soft * (ZETA - GAMMA) + GAMMA).clamp(EPSILON, 1)
    return soft + ((soft >= 0.5).to(soft.dtype) - soft).detach()


def decide(log_alpha: Tensor) -> Tensor:
    """Return which gates are open without noise."""
    return log_alpha.detach() >= 0


def expected_open(log_alpha: Tensor, form: str = "exact") -> Tensor:
    """Return the chance of each gate to be open: the "exact" one, or the "published" one, of soft gates."""
    if form not in FORMS:
        raise UnknownNameError("form of the expected number of gates", form, FORMS, "form")
    shift = BETA * math.log(-GAMMA / ZETA) if form == "published" else 0.0
    return torch.sigmoid(log_alpha - shift)


def scale_for(gates: Tensor) -> Tensor:
    """Return units / open gates, by which the open units make up for the closed ones; 1 if none is open."""
    opened = gates.detach().sum()
    return torch.where(opened > 0, gates.numel() / opened.clamp_min(1), 1.0)
