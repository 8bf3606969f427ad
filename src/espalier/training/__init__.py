"""Fine-tuning that resumes bit for bit, with masks, gradual pruning and distillation."""

from __future__ import annotations

from .callbacks import Callback, Callbacks, Hold
from .distillation import Distillation
from .gates import Gates
from .gradual import Gradual, Movement
from .held_mask import HeldMask, held
from .loop import train
from .tensorboard import TensorBoard

__all__ = [
    "Callback",
    "Callbacks",
    "Distillation",
    "Gates",
    "Gradual",
    "HeldMask",
    "Hold",
    "Movement",
    "TensorBoard",
    "held",
    "train",
]
