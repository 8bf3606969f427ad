"""The subject of every lesson: a small vision transformer that reads scikit-learn's digits."""

from __future__ import annotations

import copy
from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F
from transformers import ViTConfig, ViTForImageClassification

from espalier import Batches


@cache
def data():
    """Return images and labels of 1,200 digits to train on and of 500 others to test on."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images = torch.tensor(images[order].reshape(-1, 1, 8, 8) / 8 - 1, dtype=torch.float32)
    labels = torch.tensor(labels[order])
    return images[:1200], labels[:1200], images[-500:], labels[-500:]


def new(seed: int = 0, **sizes) -> ViTForImageClassification:
    """Return an untrained model: 16 patches, 2 layers, 4 heads, 64 neurons."""
    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    fixed = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10, "initializer_range": 0.15}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return ViTForImageClassification(ViTConfig(**(shape | sizes), **fixed, **off))


def train(model, steps: int = 150, lr: float = 4e-3, seed: int = 0, optimizer=None, after=None):
    """Train in place and return the model; `after(step)` is called after every step."""
    images, labels, _, _ = data()
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=lr)
    for step in range(steps):
        rows = np.random.default_rng([seed, step]).integers(len(images), size=64)
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1, (step + 1) / 20) * (1 - step / steps)
        F.cross_entropy(model(images[rows]).logits, labels[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if after:
            after(step)
    return model.eval()


@cache
def _trained():
    return train(new())


def trained() -> ViTForImageClassification:
    """Return a copy of the trained model."""
    return copy.deepcopy(_trained())


def accuracy(model) -> float:
    """Return the share of test digits that are read right."""
    _, _, images, labels = data()
    with torch.no_grad():
        return (model(images).logits.argmax(-1) == labels).float().mean().item()


def batches(examples: int = 256) -> Batches:
    """Return training digits to score units on."""
    images, labels, _, _ = data()
    return Batches([{"pixel_values": images[:examples], "labels": labels[:examples]}])
