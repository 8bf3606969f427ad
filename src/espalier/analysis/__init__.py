"""Results read from run folders: curves, intervals, summaries. No model and no torch is needed."""

from .curves import Curve
from .reader import read_run
from .results import Cost, Results, SplitPredictions

__all__ = ["Cost", "Curve", "Results", "SplitPredictions", "read_run"]
