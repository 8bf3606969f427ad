"""Fine-tuning that resumes bit for bit, with masks, gradual pruning and distillation."""

from __future__ import annotations

from .callbacks import Callback, Hold
from .distillation import Distillation
from .gates import Gates
from .gradual import Gradual, Movement
from .held_mask import HeldMask, held
from .loop import train
from .trackers import Track

__all__ = ["Callback", "Distillation", "Gates", "Gradual", "HeldMask", "Hold", "Movement", "Track"]
__all__ += ["held", "train"]
