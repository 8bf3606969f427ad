"""Training: fine-tuning that can be killed at any moment and goes on to the same weights, masks included."""

from __future__ import annotations

from .distillation import Distillation
from .finetune import train
from .gradual import Gradual, Hold
from .held_mask import Held, held
from .movement import Movement
from .regime import Regime

__all__ = ["Distillation", "Gradual", "Held", "Hold", "Movement", "Regime", "held", "train"]
