"""The sparsity study: how many single weights can go, by which criterion, with and without training."""

from __future__ import annotations

from .contenders import Contender, levels_of, parse
from .studying import Progress, study
from .trainings import Training

__all__ = ["Contender", "Progress", "Training", "levels_of", "parse", "study"]
