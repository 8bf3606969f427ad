"""Short hashes: of weights (a different model under the same name is detected), texts and files."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def fingerprint_weights(model: nn.Module) -> str:
    """Return a hash over the names and values of the state dict."""
    found = hashlib.blake2b(digest_size=8)
    for name, value in model.state_dict().items():
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()


def digest(data: bytes) -> str:
    """Return a short hash of the content of a file or a text."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()
