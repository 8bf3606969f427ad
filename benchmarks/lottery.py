"""Are there lottery tickets in a small transformer? A tiny ViT on scikit-learn's digits, three seeds.

python benchmarks/lottery.py                                              writes results/lottery, ten minutes
python benchmarks/lottery.py --seeds 1 --rounds 1 --steps 40 -o FOLDER    a quick run
"""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from espalier import Mask, sites
from espalier.training import lottery
from espalier.training.held_mask import held
from espalier.training.optimizer import lr_factor

HERE = Path(__file__).parent / "results" / "lottery"
STEPS, BATCH_SIZE, WARMUP = 300, 64, 0.1
LEARNING_RATES = (1e-3, 2e-3, 4e-3, 8e-3)  # the best for a dense model of another seed is used
ROUNDS, REMOVE, LATE = 5, 0.5, 30  # 0.5^5 = 3.1 % are kept at the end; LATE: the step of the late rewinding
SERIES = {
    "ticket": "ticket, rewound to the beginning",
    "late": f"ticket, rewound to step {LATE} of {{steps}}",
    "rate": "weights kept, learning rate rewound",
    "random": "random mask, same layer-wise ratios",
    "fresh": "the ticket's mask, new initialisation",
}


@dataclass(frozen=True)
class Split:
    images: torch.Tensor
    labels: torch.Tensor


def digits() -> tuple[Split, Split, Split]:
    """Return 1,000 images to train on, 297 to choose the learning rate by, and 500 to test on."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 1, 8, 8) / 8 - 1).astype(np.float32)
    found, left = [], (images, labels)
    for size in (1000, 297):
        mine, rest, truth, rest_truth = train_test_split(
            *left, train_size=size, random_state=1, stratify=left[1]
        )
        found.append((mine, truth))
        left = (rest, rest_truth)
    train, validation, test = (Split(torch.from_numpy(x), torch.from_numpy(y)) for x, y in (*found, left))
    return train, validation, test


def vit(seed: int):
    """Return a ViT of two layers with random weights."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(seed)
    config = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=10,
        initializer_range=0.15,  # the usual 0.02 is made for wider models
    )
    return ViTForImageClassification(config)


class Trainer:
    """Train with AdamW on batches drawn by step number; return which held-out images are predicted right."""

    def __init__(self, learn: Split, held_out: Split, found, seed: int, lr: float, steps: int):
        self.learn, self.held_out, self.sites = learn, held_out, found
        self.seed, self.lr, self.steps = seed, lr, steps

    def __call__(self, model, mask: Mask, start: int, on_step) -> np.ndarray:
        images, labels = self.learn.images, self.learn.labels
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.lr, weight_decay=0.01)
        model.train()
        on_step(start)
        with held(self.sites, mask, optimizer):
            for step in range(start, self.steps):
                rng = np.random.default_rng([self.seed, step])
                rows = rng.choice(len(images), BATCH_SIZE, replace=False)
                for group in optimizer.param_groups:
                    group["lr"] = self.lr * lr_factor(step, self.steps, WARMUP)
                F.cross_entropy(model(images[rows]).logits, labels[rows]).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                on_step(step + 1)
        model.eval()
        with torch.no_grad():
            guessed = model(self.held_out.images).logits.argmax(-1)
        return (guessed == self.held_out.labels).numpy()


def best_lr(learn: Split, validation: Split, steps: int, seed: int = 99) -> float:
    """Return the learning rate with the best accuracy of a dense model on validation images."""
    reached = {}
    for lr in LEARNING_RATES:
        model = vit(seed)
        found = sites(model, "weights")
        train = Trainer(learn, validation, found, seed, lr, steps)
        reached[lr] = train(model, Mask.ones(found), 0, lambda step: None).mean()
        print(f"lr {lr:g}: {reached[lr]:.3f} of the validation images", flush=True)
    return max(reached, key=reached.get)


def one_seed(
    learn: Split, test: Split, seed: int, lr: float, steps: int, rounds: int
) -> dict[tuple[str, int], tuple[float, np.ndarray]]:
    """Return by series and round the fraction kept, and which test images are predicted right."""
    model = vit(seed)
    found, first = sites(model, "weights"), lottery.copy_state(model)
    train = Trainer(learn, test, found, seed, lr, steps)
    other = lottery.copy_state(vit(1000 + seed))
    out: dict[tuple[str, int], tuple[float, np.ndarray]] = {}
    options = {"rounds": rounds, "remove": REMOVE}
    for name, more in (
        ("ticket", {}),
        ("late", {"rewind": LATE}),
        ("rate", {"keep_weights": True}),
    ):
        model.load_state_dict(first)
        for ticket in lottery.tickets(model, found, train, **options, **more):
            out[name, ticket.round] = (ticket.mask.kept, ticket.result)
            if name == "ticket":
                trained = lottery.copy_state(model)
                rest = {
                    "random": (lottery.random_like(ticket.mask, seed), first),
                    "fresh": (ticket.mask, other),
                }
                for control, (mask, state) in rest.items():
                    result = ticket.result  # a full mask is no other mask
                    if ticket.round or control == "fresh":
                        result = lottery.train_control(model, found, train, mask, state)
                    out[control, ticket.round] = (mask.kept, result)
                model.load_state_dict(trained)  # the next round prunes by these
    return out


def intervals(right: np.ndarray, draws: int = 2000) -> tuple[float, float, float]:
    """Return the mean and the middle 95 % when seeds and test images are drawn again; [seeds, images]."""
    rng = np.random.default_rng(0)
    seeds, images = right.shape
    means = [
        right[rng.integers(seeds, size=seeds)][:, rng.integers(images, size=images)].mean()
        for _ in range(draws)
    ]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(right.mean()), float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of pruning")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each training, {LATE} or more")
    parser.add_argument("-o", "--output", type=Path, default=HERE)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    learn, validation, test = digits()
    steps, rounds = arguments.steps, arguments.rounds
    lr, found = best_lr(learn, validation, steps), []
    for seed in range(arguments.seeds):
        found.append(one_seed(learn, test, seed, lr, steps, rounds))
        print(f"seed {seed}: {time.process_time():.0f} seconds", flush=True)
    rows = []
    for name in SERIES:
        for number in range(rounds + 1):
            kept = found[0][name, number][0]
            right = np.stack([one[name, number][1] for one in found]).astype(float)
            base = np.stack([one["ticket", number][1] for one in found]).astype(float)
            mean, low, high = intervals(right)
            less, below, above = intervals(base - right)
            row = {"series": name, "round": number, "kept": round(kept, 4), "accuracy": mean}
            row |= {"low": low, "high": high, "ticket minus this": less}
            rows.append(row | {"difference low": below, "difference high": above})
    arguments.output.mkdir(parents=True, exist_ok=True)
    about = (
        f"{steps} steps of {BATCH_SIZE} images at a learning rate of {lr:g}, chosen on "
        f"{len(validation.labels)} validation images; {time.process_time() / 60:.0f} minutes of one core."
    )
    labels = {name: label.format(steps=steps) for name, label in SERIES.items()}
    write(rows, labels, arguments.output, arguments.seeds, len(test.labels), about)


def write(rows, labels: dict[str, str], folder: Path, seeds: int, images: int, about: str) -> None:
    """Write the table as csv and Markdown, and the figure."""
    with (folder / "accuracy.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.4f}" if isinstance(v, float) else v for k, v in row.items()})
    kept = {row["round"]: row["kept"] for row in rows}
    lines = [
        f"Accuracy in per cent on {images} test digits, the mean of {seeds} seeds; in brackets the middle",
        f"95 % when seeds and images are drawn again. A ViT of 2 layers, 32 wide; {about}",
        "",
        "| weights kept | " + " | ".join(labels.values()) + " |",
        "| --- |" + " --- |" * len(SERIES),
    ]
    for number, fraction in kept.items():
        cells = []
        for name in SERIES:
            row = next(r for r in rows if (r["series"], r["round"]) == (name, number))
            cells.append(f"{100 * row['accuracy']:.1f} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]")
        lines.append(f"| {100 * fraction:.1f} % | " + " | ".join(cells) + " |")
    (folder / "accuracy.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    draw(rows, labels, folder / "accuracy.png")


def draw(rows, labels: dict[str, str], file: Path) -> None:
    """Draw accuracy against the weights kept, one line per series."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    looks = {
        "ticket": ("#1b6ca8", "o", "-"),
        "late": ("#0b3954", "s", "-"),
        "rate": ("#5aa469", "^", "-"),
        "random": ("#c0504d", "x", "--"),
        "fresh": ("#e0a030", "v", "--"),
    }
    for i, (name, label) in enumerate(labels.items()):
        mine = [r for r in rows if r["series"] == name]
        x = np.array([100 * r["kept"] for r in mine]) * 1.03 ** (i - 2)  # next to each other, not on top
        y = np.array([100 * r["accuracy"] for r in mine])
        bars = np.abs(np.array([[100 * r["low"], 100 * r["high"]] for r in mine]).T - y)
        color, marker, line = looks[name]
        axes.errorbar(
            x,
            y,
            bars,
            color=color,
            marker=marker,
            ls=line,
            ms=4,
            lw=1.2,
            elinewidth=0.7,
            label=label,
        )
    axes.set_xscale("log")
    axes.invert_xaxis()
    ticks = sorted({round(100 * r["kept"], 1) for r in rows})
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel("weights kept, %")
    axes.set_ylabel("test accuracy, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    figure.savefig(file, dpi=130)


if __name__ == "__main__":
    main()
