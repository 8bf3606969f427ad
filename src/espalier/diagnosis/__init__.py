"""Diagnosis: are the gradients that heads are ranked by sound?"""

from __future__ import annotations

from .diagnosing import diagnose, kendall

__all__ = ["diagnose", "kendall"]
