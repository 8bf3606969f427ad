"""Training: fine-tuning that can be killed at any moment and goes on to the same weights."""

from __future__ import annotations

from .finetuning import train

__all__ = ["train"]
