"""Filters of a small residual net on CIFAR-10: L1, random, network slimming, and 2:4 on single weights.

python benchmarks/cifar.py DATA -o WORK      DATA holds train.tar.xz and test.tar.xz: <split>/<class>/*.jpg
python benchmarks/cifar.py digits -o WORK    the same on scikit-learn's digits, a minute
python benchmarks/cifar.py write             results/cifar.md from results/cifar.json

One thread. WORK holds the decoded images and the trained nets, results/cifar.json what was measured; what is
there is not computed again, so a killed run resumes. Nothing is chosen on the test images.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import lzma
import tarfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from espalier import Scores, convnets, remove_lowest
from espalier.io.files import write_json
from espalier.training.held_mask import held

RESULTS = Path(__file__).parent / "results"
LEVELS = (0.3, 0.5, 0.7)
WAYS = ("L1", "random", "slimming", "slimming, global")
STRENGTH = {"cifar": 0.01, "digits": 0.1}  # of slimming
SETTINGS = {
    "cifar": {"train": 10_000, "test": 5_000, "epochs": 8, "batch": 128, "lr": 0.2, "stride": 2},
    "digits": {"train": 1_000, "test": 797, "epochs": 12, "batch": 32, "lr": 0.05, "stride": 1},
}


class Block(nn.Module):
    """Two convolutions of 3 × 3 with batch norms, added to what came in."""

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride > 1 or channels != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """Three stages of two blocks with 16, 32 and 64 channels, named as in torchvision."""

    def __init__(self, channels: int, stride: int, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.conv1, self.bn1 = nn.Conv2d(channels, 16, 3, stride, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(Block(16, 16, 1), Block(16, 16, 1))
        self.layer2 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1))
        self.layer3 = nn.Sequential(Block(32, 64, 2), Block(64, 64, 1))
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def unpack(path: Path, each: int) -> tuple[Tensor, Tensor]:
    """Return the first `each` images of every class of an archive, as bytes, and their classes."""
    from PIL import Image

    if not path.is_file():
        raise SystemExit(f"{path} is not there: DATA holds train.tar.xz and test.tar.xz")
    found: dict[str, list[np.ndarray]] = {}
    with lzma.open(path) as packed, tarfile.open(fileobj=packed, mode="r|") as archive:
        for member in archive:
            parts = Path(member.name).parts
            if not member.isfile() or len(parts) != 3 or not member.name.endswith((".jpg", ".jpeg")):
                continue
            images = found.setdefault(parts[1], [])
            if len(images) < each:
                with Image.open(io.BytesIO(archive.extractfile(member).read())) as image:
                    pixels = np.asarray(image.convert("RGB"))
                if pixels.shape != (32, 32, 3):
                    raise SystemExit(f"{member.name} in {path} is {pixels.shape}; images are 32 × 32 pixels")
                images.append(pixels)
    if len(found) != 10 or any(len(images) < each for images in found.values()):
        seen = {name: len(images) for name, images in found.items()}
        raise SystemExit(f"{path} holds {seen}; wanted are {each} images of each of 10 classes")
    names = sorted(found)
    pixels = np.concatenate([np.stack(found[name]) for name in names])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), torch.arange(10).repeat_interleave(each)


def images(data: str, work: Path, about: dict) -> dict[str, Tensor]:
    """Return images and classes of both splits, decoded once."""
    place = work / "images.safetensors"
    if place.exists():
        return load_file(place)
    if data == "digits":
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(1).permutation(len(pixels))
        x = torch.from_numpy((pixels[order] * 15.9375).astype(np.uint8)).reshape(-1, 1, 8, 8)
        y, n = torch.from_numpy(labels[order]), about["train"]
        out = {"train": x[:n].clone(), "train labels": y[:n].clone()}
        out |= {"test": x[n:].clone(), "test labels": y[n:].clone()}
    else:
        out = {}
        for split in ("train", "test"):
            out[split], out[f"{split} labels"] = unpack(Path(data) / f"{split}.tar.xz", about[split] // 10)
    save_file(out, place)
    return out


def floats(pixels: Tensor) -> Tensor:
    x = pixels.float() / 64 - 2
    return x.contiguous(memory_format=torch.channels_last)


def train(
    net, data, epochs: int, batch_size: int, lr: float, seed: int, strength: float = 0.0, mask=None
) -> None:
    """SGD with momentum, the learning rate falling to zero; large images are shifted and flipped."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    x, y, rng = data["train"], data["train labels"], torch.Generator().manual_seed(seed)
    steps, done = epochs * (len(x) // batch_size), 0
    net.train().to(memory_format=torch.channels_last)
    with ExitStack() as held_back:
        if strength:
            held_back.enter_context(convnets.slimmed(net, optimizer, strength))
        if mask is not None:
            held_back.enter_context(held(matrices(net), mask, optimizer))
        for _ in range(epochs):
            order = torch.randperm(len(x), generator=rng)
            for start in range(0, len(x) - batch_size + 1, batch_size):
                rows = order[start : start + batch_size]
                batch = floats(x[rows])
                if x.shape[-1] == 32:
                    down, right = torch.randint(0, 7, (2,), generator=rng).tolist()
                    batch = F.pad(batch, (3, 3, 3, 3), value=0.0)[..., down : down + 32, right : right + 32]
                    flip = torch.rand(len(rows), generator=rng) < 0.5
                    batch[flip] = batch[flip].flip(-1)
                for group in optimizer.param_groups:
                    warm = min(1.0, (done + 1) / (0.1 * steps))
                    group["lr"] = lr * warm * (1 - done / steps)
                F.cross_entropy(net(batch), y[rows]).backward()
                optimizer.step()
                optimizer.zero_grad()
                done += 1
    net.eval()


@torch.no_grad()
def right(net, data) -> np.ndarray:
    """Return which test images are predicted right."""
    net.eval()
    found = [net(floats(part)).argmax(1) for part in data["test"].split(500)]
    return (torch.cat(found) == data["test labels"]).numpy()


def interval(values, draws: int = 2000) -> list[float]:
    """Return the mean and its 95 % interval by drawing images anew."""
    rng, values = np.random.default_rng(0), np.asarray(values, float)
    means = [values[rng.integers(0, len(values), len(values))].mean() for _ in range(draws)]
    return [float(values.mean()), *map(float, np.quantile(means, (0.025, 0.975)))]


def macs(net, example: Tensor) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net.eval()(example)
    return counter.get_total_flops() // 2


@torch.no_grad()
def speed(net, dense, example: Tensor, copies: int = 5, rounds: int = 6) -> list[float]:
    """Return how often as fast as the dense net: processor seconds, in turns; median and quartiles.

    Where the weights lie in memory changes the time of a pass: the ratio is that of several copies of both.
    """
    ratios = []
    for _ in range(copies):
        pair = [copy.deepcopy(one).to(memory_format=torch.contiguous_format) for one in (dense, net)]
        spent = np.empty((rounds + 2, 2))
        for number in range(rounds + 2):
            for side in (0, 1) if number % 2 else (1, 0):
                start = time.process_time()
                pair[side](example)
                spent[number, side] = time.process_time() - start
        ratios.append(np.median(spent[2:, 0]) / np.median(spent[2:, 1]))
    return [float(q) for q in np.quantile(ratios, (0.5, 0.25, 0.75))]


@torch.no_grad()
def measured_again(net, data):
    """Return the net with means and variances of its batch norms measured anew on training images."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the mean over all batches
    net.train()
    for rows in torch.randperm(len(data["train"]), generator=torch.Generator().manual_seed(2))[:1000].split(
        100
    ):
        net(floats(data["train"][rows]))
    return net.eval()


def matrices(net):
    """Return the convolutions that 2:4 prunes: all that read at least four channels."""
    return [site for site in convnets.weight_sites(net) if site.shape[1] >= 4 and site.linear is not net.fc]


class Study:
    """One net on one set of images; every measurement is a row of results/cifar.json."""

    def __init__(self, name: str, data: str, work: Path, results: Path, about: dict):
        work.mkdir(parents=True, exist_ok=True)
        self.name, self.work, self.results, self.about = name, work, results, about
        self.data = images(data, work, about)
        self.one = floats(self.data["test"][:1]).contiguous()
        self.many = floats(self.data["test"][:64]).contiguous()

    def trained(self, name: str, strength: float = 0.0):
        """Return a trained net, from its file if there is one."""
        net, place = ResNet(self.one.shape[1], self.about["stride"]), self.work / f"{name}.safetensors"
        if place.exists():
            net.load_state_dict(load_file(place))
        else:
            start = time.process_time()
            train(net, self.data, self.about["epochs"], self.about["batch"], self.about["lr"], 0, strength)
            save_file({key: t.contiguous() for key, t in net.state_dict().items()}, place)
            print(f"{self.name} {name}: {time.process_time() - start:.0f} s", flush=True)
        return net.eval()

    def row(self, key: str, net, change, base=None) -> None:
        """Measure a net that `change` makes of another one, unless this is known."""
        known = read(self.results)
        if key in known.get(self.name, {}):
            return
        net = change(copy.deepcopy(net))
        found = right(net, self.data)
        row = {"accuracy": interval(found), "right": np.packbits(found).tobytes().hex()}
        row |= {"parameters": sum(p.numel() for p in net.parameters()), "macs": macs(net, self.one)}
        zero = sum(int((s.linear.weight == 0).sum()) for s in convnets.weight_sites(net))
        row["zeros"] = zero / row["parameters"]
        dense = known.get(self.name, {}).get("dense")
        if dense is not None:
            before = np.unpackbits(np.frombuffer(bytes.fromhex(dense["right"]), np.uint8))[: len(found)]
            row["change"] = interval(found.astype(int) - before.astype(int))
        if base is not None:
            row["speed, 1"], row["speed, 64"] = speed(net, base, self.one), speed(net, base, self.many)
        known = read(self.results)
        known.setdefault(self.name, {})[key] = row
        write_json(self.results, known)
        print(self.name, key, [round(v, 4) for v in row["accuracy"]], row["macs"], flush=True)

    def tuned(self, net, mask=None):
        train(net, self.data, 1, self.about["batch"], self.about["lr"] / 4, 1, mask=mask)
        return net

    def run(self) -> None:
        """Everything of the dense net first, then what is cut out of the slimmed one."""
        dense = self.trained("dense")
        self.row("dense", dense, lambda net: net, dense)
        self.row("dense, fine-tuned", dense, self.tuned)
        rng = torch.Generator().manual_seed(0)
        sites = convnets.filter_sites(dense, self.one)
        chance = Scores({site.name: torch.rand(site.units, generator=rng).double() for site in sites})
        self.cuts("L1", dense, convnets.l1(sites), "layer", dense)
        self.cuts("random", dense, chance, "layer", dense)
        self.sparse(dense)
        slim = self.trained("slimmed", STRENGTH[self.name])
        self.row("slimmed", slim, lambda net: net)
        scales = convnets.scales(convnets.filter_sites(slim, self.one))
        self.cuts("slimming", slim, scales, "layer", dense)
        self.cuts("slimming, global", slim, scales, "global", dense)

    def cuts(self, name: str, net, scores: Scores, scope: str, dense) -> None:
        """Cut a net at every level: as it is, with its norms measured again, and fine-tuned."""
        for level in LEVELS:
            mask = remove_lowest(scores, level, scope=scope)
            for site, kept in mask.items():
                if not kept.any():  # a net needs a filter everywhere
                    kept[scores[site].argmax()] = True

            def cut(net, mask=mask):
                convnets.remove_filters(net, mask, self.one)
                return net

            key = f"{name} {level:g}"
            self.row(key, net, cut, dense)
            self.row(f"{key}, norms", net, lambda net, cut=cut: measured_again(cut(net), self.data))
            self.row(f"{key}, fine-tuned", net, lambda net, cut=cut: self.tuned(cut(net)))

    def sparse(self, dense) -> None:
        """Two of four neighbours along the channels that a convolution reads, by magnitude."""
        found = matrices(dense)
        sizes = Scores(
            {s.name: s.linear.weight.detach().abs() for s in found}, {s.name: s.input_axis for s in found}
        )
        mask = remove_lowest(sizes, scope="2:4")

        def zeroed(net):
            with torch.no_grad():
                for site in matrices(net):
                    site.linear.weight.mul_(mask[site.name])
            return net

        self.row("2:4", dense, zeroed, dense)
        self.row("2:4, norms", dense, lambda net: measured_again(zeroed(net), self.data))
        self.row("2:4, fine-tuned", dense, lambda net: self.tuned(net, mask))


def read(place: Path) -> dict:
    return json.loads(place.read_text()) if place.exists() else {}


def table(rows: dict) -> str:
    heads = ["removed", "parameters", "MACs", "as cut", "norms measured again", "fine-tuned"]
    heads += ["fine-tuned against dense", "speed, 1 image", "speed, 64 images"]
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]

    def show(row: dict, key: str, form: str, scale: int = 100) -> str:
        return form.format(*(scale * x for x in row[key])) if key in row else ""

    order = ["dense", "slimmed", "2:4", *(f"{name} {level:g}" for level in LEVELS for name in WAYS)]
    for key in [key for key in order if key in rows]:
        row = rows[key]
        norms, after = rows.get(f"{key}, norms", {}), rows.get(f"{key}, fine-tuned", {})
        name, _, level = key.rpartition(" ")
        shown = f"{float(level):.0%} of filters by {name}" if name else key
        cells = [shown, f"{row['parameters']:,}", f"{row['macs'] / 1e6:.2f}M"]
        cells += [show(each, "accuracy", "{:.1f} [{:.1f}, {:.1f}]") for each in (row, norms, after)]
        cells += [show(after, "change", "{:+.1f} [{:+.1f}, {:+.1f}]")]
        cells += [show(row, f"speed, {n}", "{:.2f}× [{:.2f}, {:.2f}]", 1) for n in (1, 64)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write(results: Path) -> None:
    """Write the page of what was measured."""
    text = [
        """# Filters of a small residual net

Written by `python benchmarks/cifar.py DATA -o WORK` and `python benchmarks/cifar.py digits -o WORK`. A net of
three stages of two blocks with 16, 32 and 64 channels, one seed, one thread. Filters are compared within
their layer, in "slimming, global" within the whole net. Norms measured again: means and variances of batch
norms on 1,000 training images, no training. Fine-tuned: one epoch more at a quarter of the learning rate; the
first line is the dense net after it. In brackets 95 % over test images, paired where it is a difference; of
speed the quartiles over five copies of both nets, which take turns, in processor seconds on a busy machine.
"""
    ]
    for name, rows in read(results).items():
        about = SETTINGS[name]
        text.append(
            f"## {name}\n\n{about['train']:,} training and {about['test']:,} test images, "
            f"{about['epochs']} epochs, learning rate {about['lr']:g}, slimming with strength "
            f"{STRENGTH[name]:g}, stride of the first convolution {about['stride']}.\n\n{table(rows)}"
        )
    results.with_suffix(".md").write_text("\n".join(text), encoding="utf-8")


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("data", help="a folder with train.tar.xz and test.tar.xz, or digits, or write")
    ask.add_argument("-o", "--work", type=Path, help="for decoded images and nets")
    ask.add_argument("--results", type=Path, default=RESULTS / "cifar.json")
    ask.add_argument("--epochs", type=int)
    given = ask.parse_args()
    torch.set_num_threads(1)
    if given.data != "write":
        if given.work is None:
            ask.error("-o WORK: a folder for decoded images and nets")
        name = "digits" if given.data == "digits" else "cifar"
        about = SETTINGS[name] | ({"epochs": given.epochs} if given.epochs else {})
        Study(name, given.data, given.work / name, given.results, about).run()
    write(given.results)


if __name__ == "__main__":
    main()
