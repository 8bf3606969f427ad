"""Results: what experiments found, read from files, summed up, with intervals. No model is needed."""

from __future__ import annotations

from .found import LOWER_IS_BETTER, Answers, Cost, Results, Unit, read_run

__all__ = ["LOWER_IS_BETTER", "Answers", "Cost", "Results", "Unit", "read_run"]
