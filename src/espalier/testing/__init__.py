"""Checks of architecture tables and criteria, for other packages too: tiny models, contracts, gradients."""

from .architecture import check_architecture
from .behaviours import check_behaviours
from .criterion import check_criterion

__all__ = ["check_architecture", "check_behaviours", "check_criterion"]
