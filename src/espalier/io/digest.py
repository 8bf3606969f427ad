"""Short hashes: of weights (a different model under the same name is detected), texts and files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import nn


def fingerprint_weights(model: nn.Module) -> str:
    """Return a hash over the names and values of the state dict."""
    digest = hashlib.blake2b(digest_size=8)
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def digest_text(text: str) -> str:
    """Return a short hash of a text."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def digest_file(path: str | Path) -> str:
    """Return a short hash of a file's content."""
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()
