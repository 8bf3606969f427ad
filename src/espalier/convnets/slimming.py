"""Network slimming: Σ loss + λ Σ|γ| over the scales of batch norms (Liu et al. 2017, arXiv 1708.06519).

A subgradient never reaches zero; so after every step each scale is shrunk by lr·λ and stops at zero, the
proximal step of the same objective. Filters whose scale is zero can be removed: what is left of them is the
constant act(β), which fine-tuning makes up for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..core.errors import InvalidValueError, UnsupportedError
from .filters import NORMS


@contextmanager
def slimmed(net: nn.Module, optimizer: Any, strength: float) -> Iterator[None]:
    """Pull the scales of all batch norms towards zero after every step of the optimizer inside."""
    if not 0 <= strength < float("inf"):
        raise InvalidValueError(f"`strength` is {strength}; it must be 0 or more", "strength")
    scales = [m.weight for m in net.modules() if isinstance(m, NORMS) and m.weight is not None]
    if not scales:
        raise UnsupportedError("the net has no batch norm with scales to slim")
    rates = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    missing = [scale for scale in scales if id(scale) not in rates]
    if missing:
        raise UnsupportedError(f"{len(missing)} scales of batch norms are not in the optimizer")

    def shrink(*_: Any) -> None:
        with torch.no_grad():
            for scale in scales:
                pull = rates[id(scale)]["lr"] * strength
                scale.copy_(scale.sign() * (scale.abs() - pull).clamp_min(0))

    hook = optimizer.register_step_post_hook(shrink)
    try:
        yield
    finally:
        hook.remove()
