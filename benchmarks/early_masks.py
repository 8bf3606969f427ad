"""Masks from the first step, and masks that move: what SNIP, GraSP and movement pruning were made for.

python benchmarks/early_masks.py start       SNIP, GraSP, magnitude and random at initialisation; five minutes
python benchmarks/early_masks.py movement    movement and magnitude while a trained model learns a new task
python benchmarks/early_masks.py start --seeds 1 --steps 40 -o FOLDER      a quick run
python benchmarks/early_masks.py movement --only 2                         one seed, beside other processes

A ViT and a convolution net on scikit-learn's digits (1,000 to train, 500 to test). Every method trains as
many steps with the same batches. Results are written after every seed, so a killed run resumes.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from benchmarks.lottery import BATCH_SIZE, WARMUP, Split, digits, vit
from torch import nn
from torch.nn import functional as F

from espalier import Batches, Mask, criteria, remove_lowest, sites
from espalier.convnets import weight_sites
from espalier.io.files import write_bytes
from espalier.training import Gradual, Movement
from espalier.training.held_mask import held
from espalier.training.run import lr_factor

HERE = Path(__file__).parent / "results" / "early_masks"
REMOVE = {"start": (0.8, 0.9, 0.95, 0.98), "movement": (0.85, 0.95)}
LR = {"vit": 8e-3, "cnn": 4e-3}
STEPS = {"start": 300, "movement": 300}


class Net(nn.Module):
    """Three convolutions and a classifier, called like a model of transformers."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        widths = (1, 16, 32, 64)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(widths))
        self.head = nn.Linear(64, 10)

    def forward(self, pixel_values, labels=None):
        x = pixel_values
        for conv in self.convs:
            x = F.relu(conv(x))
            x = F.max_pool2d(x, 2) if x.shape[-1] > 2 else x
        logits = self.head(x.mean((2, 3)))
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return SimpleNamespace(logits=logits, loss=loss)


MODELS = {"vit": vit, "cnn": Net}


def places(model):
    """Return the matrices to prune: those of the blocks, of a convolution net all."""
    return weight_sites(model) if isinstance(model, Net) else sites(model, "weights")


class Run(SimpleNamespace):
    """What the callbacks of a training need to know of it."""


def train(model, learn: Split, seed: int, lr: float, steps: int, mask=None, callback=None) -> None:
    """Train under a mask or with a callback that changes it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    device = SimpleNamespace(device=torch.device("cpu"))
    run = Run(
        model=model, optimizer=optimizer, step=0, total_steps=steps, settings={"lr": lr}, accelerator=device
    )
    run.trainable = dict(model.named_parameters())
    model.train()
    found = [] if mask is None else places(model)
    with held(found, mask or Mask(), optimizer):
        if callback is not None:
            callback.on_start(run)
        for step in range(steps):
            rows = np.random.default_rng([seed, step]).choice(len(learn.images), BATCH_SIZE, replace=False)
            for group in optimizer.param_groups:
                group["lr"] = lr * lr_factor(step, steps, WARMUP) * group.get("lr_factor", 1.0)
            F.cross_entropy(model(learn.images[rows]).logits, learn.labels[rows]).backward()
            if callback is not None:
                callback.after_backward(run)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            run.step = step + 1
            if callback is not None:
                callback.after_step(run)
    if callback is not None:
        callback.on_end()
    model.eval()


def right(model, test: Split) -> list[int]:
    """Return which test images are predicted right."""
    with torch.no_grad():
        return (model(test.images).logits.argmax(-1) == test.labels).int().tolist()


def at_start(seed: int, steps: int) -> dict[str, list[int]]:
    """Prune before the first step by each criterion, then train."""
    learn, _, test = digits()
    batches = Batches([{"pixel_values": learn.images[:256], "labels": learn.labels[:256]}])
    out: dict[str, list[int]] = {}
    for kind, make in MODELS.items():
        dense = make(seed)
        train(dense, learn, seed, LR[kind], steps)
        out[f"{kind} dense 0"] = right(dense, test)
        for method in ("magnitude", "random", "snip", "grasp"):
            first = make(seed)
            options = {"seed": seed} if method == "random" else {}
            scores = criteria.load(method)(first, places(first), batches, **options)
            for remove in REMOVE["start"]:
                model = make(seed)
                mask = remove_lowest(scores, remove)
                train(model, learn, seed, LR[kind], steps, mask)
                out[f"{kind} {method} {remove:g}"] = right(model, test)
    return out


def turned(split: Split) -> Split:
    """Return another task of the same images: upside down and negative, classes in another order."""
    order = torch.tensor([3, 7, 1, 9, 0, 5, 8, 2, 6, 4])
    return Split(-split.images.flip(-2).transpose(-1, -2), order[split.labels])


def while_training(seed: int, steps: int) -> dict[str, list[int]]:
    """Train on one task, then prune while learning another."""
    learn, _, test = digits()
    start = vit(seed)
    train(start, learn, seed, LR["vit"], 300)
    weights = {name: t.clone() for name, t in start.state_dict().items()}
    new, held_out = turned(learn), turned(test)
    out: dict[str, list[int]] = {}
    how = {"schedule": "cubic", "until": 0.7}
    magnitude = criteria.load("magnitude")
    ways: dict[str, Any] = {
        "magnitude": lambda remove: Gradual(lambda m, s, _: magnitude(m, s), remove, **how),
        "movement": lambda remove: Movement(remove, score_lr=1e-2, **how),
    }
    for lr in (3e-4, 1e-3, 4e-3):
        dense = vit(seed)
        dense.load_state_dict(weights)
        train(dense, new, seed, lr, steps)
        out[f"lr {lr:g} dense 0"] = right(dense, held_out)
        for name, make in ways.items():
            for remove in REMOVE["movement"]:
                model = vit(seed)
                model.load_state_dict(weights)
                train(model, new, seed, lr, steps, callback=make(remove))
                zero = 1 - sum((s.linear.weight != 0).sum() for s in places(model)) / sum(
                    s.units for s in places(model)
                )
                assert abs(zero - remove) < 0.01, (name, remove, zero)
                out[f"lr {lr:g} {name} {remove:g}"] = right(model, held_out)
    return out


def table(found: dict[str, dict[str, list[int]]], levels: tuple[float, ...]) -> str:
    """Return accuracy by method and fraction removed, with intervals over seeds and images."""
    rng, names = (
        np.random.default_rng(0),
        list(dict.fromkeys(k.rpartition(" ")[0] for k in next(iter(found.values())))),
    )
    lines = [
        "| | " + " | ".join(f"{remove:.0%} removed" for remove in levels) + " |",
        "| --- |" + " --- |" * len(levels),
    ]

    def cell(key: str) -> str:
        if key not in next(iter(found.values())):
            return ""
        values = np.array([each[key] for each in found.values()])
        seeds, images = values.shape
        draws = [
            values[rng.integers(seeds, size=seeds)][:, rng.integers(images, size=images)].mean()
            for _ in range(1000)
        ]
        low, high = np.quantile(draws, (0.025, 0.975))
        return f"{values.mean():.1%} [{low:.1%}, {high:.1%}]"

    for name in names:
        dense = cell(f"{name} 0")
        cells = [dense] if dense else [cell(f"{name} {remove:g}") for remove in levels]
        lines.append(f"| {name} | " + " | ".join(cells + [""] * (len(levels) - len(cells))) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the seeds that are missing and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["start", "movement"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", type=int, help="a single seed")
    parser.add_argument("--steps", type=int)
    parser.add_argument("-o", "--folder", type=Path, default=HERE)
    given = parser.parse_args()
    torch.set_num_threads(1)
    steps, place = given.steps or STEPS[given.what], given.folder / f"{given.what}.json"
    given.folder.mkdir(parents=True, exist_ok=True)
    for seed in range(given.seeds) if given.only is None else [given.only]:
        if str(seed) not in read(place):
            one = (at_start if given.what == "start" else while_training)(seed, steps)
            found = dict(sorted({**read(place), str(seed): one}.items()))
            write_bytes(place, json.dumps(found).encode())
            text = table(found, REMOVE[given.what])
            (given.folder / f"{given.what}.md").write_text(
                f"`python benchmarks/early_masks.py {given.what}`: {len(found)} seeds, {steps} steps, 500 "
                f"test images; in brackets the middle 95 % when seeds and images are drawn again.\n\n{text}"
            )
            print(text, flush=True)


def read(place: Path) -> dict[str, dict[str, list[int]]]:
    """Return what is measured already, also by other processes."""
    return json.loads(place.read_text()) if place.exists() else {}


if __name__ == "__main__":
    main()
