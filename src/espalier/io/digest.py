"""A fingerprint of weights: another model under the same name is another model."""

from __future__ import annotations

import hashlib
from typing import Any

import torch


def of_weights(model: Any) -> str:
    """Of every value in the state dict, with its name."""
    digest = hashlib.blake2b(digest_size=8)
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
