"""How fast sparse encodings are, and how small.

    python benchmarks/encodings.py            writes benchmarks/results/encodings.md as well
    python benchmarks/encodings.py --quick    a small matrix, in seconds; writes nothing
    python benchmarks/encodings.py --figure   only sizes against sparsity: docs/figures/encodings.png

A float32 matrix of 256 MiB with 50 % and 90 % zeros at random places. Each encoding is timed together with
two copies of the matrix in the same round, so that a busy machine slows all alike; the best round counts.
"""

import argparse
import os
import platform
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import espalier
from espalier.storage import encodings

RESULTS = Path(__file__).parent / "results" / "encodings.md"
SIDE, QUICK_SIDE, ROUNDS, THREADS = 8192, 256, 5, (1, 2)
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "encodings.png"
SHOWN = ("dense", "bitmap", "run_length", "rice", "csr", "coo")
SPARSITIES = np.linspace(0, 0.99, 34).tolist()
SLOW = ("rice", "run_length", "coo", "csc")
REMARKS = """
## What was reached

The aim was to decode bitmap and csr at a third of the rate of a copy. Against a copy to new memory, which a
decoded tensor needs as well, it is reached (0.32 to 0.64); against a copy to existing memory it
is not (0.14 to 0.33): the copy is one pass of wide moves, NumPy needs five or six passes with an index per
value. Two threads are 1.1 to 1.35 times as fast as one.

## What was tried

Per 256 MiB on one core, in chunks of 2^18 elements that stay in the cache, at 50 % unless stated otherwise:

- Putting values back through a Boolean mask: `out[mask] = values` 370 ms, `np.place` 330 ms,
  `torch.masked_scatter_` 310 ms, all with a branch per element. Turning the mask into places first
  (`np.flatnonzero` of bytes has no branch) and storing by place: 38 + 37 ms. This is what is done.
- Reading instead of storing, out[i] = values[rank of i], with a slot for zeros: the ranks by `np.cumsum` 52
  ms, `np.take` of them 86 ms, `torch.index_select` 77 ms: more than places and storing together.
- Arrow's `replace_with_mask`, which takes a bitmap and dense values: 453 ms (at 90 %: 228 ms).
- Compiled by numba, into existing memory, on a busy machine: a loop over the bits without a branch 66 to 82
  ms, two values a store by a table of all bytes 67 ms, four interleaved streams 148 to 326 ms; the copy 16 to
  23 ms in the same runs, new memory 27 ms more. One value at a time is not enough; it takes a shuffle of
  eight, which NumPy does not have, and numba only as instructions of one processor. Not worth the package.
- Storing by place: NumPy's indexing 37 ms, `torch.scatter_` 53 ms, `index_copy_` 96 ms, `np.put` 105 ms,
  `put_` 112 ms.
- Finding the values: `np.flatnonzero` of the words 337 ms, of `words != 0` 43 ms; on the full matrix
  `torch.nonzero` 720 ms and `torch.masked_select` 1080 ms.
- Chunks of 2^14 elements pay for calls (bitmap decode 250 ms), of 2^16 140 ms, of 2^18 and 2^20 105 ms.
- New memory by `np.zeros`, which asks for huge pages: 20 ms; `torch.empty` pays 140 ms in page faults.
- Two threads: NumPy releases the interpreter lock, so bitmap and csr use as many as torch does.
- Around 90 %, `np.flatnonzero` changes to a search that is slower (57 ms) than its own loop for dense masks;
  lengthening the mask with ones forces that loop (44 ms in all). Too obscure for the gain; left out.
- csr by dividing places into rows and columns: 74 ms for the division alone; now a row's start is subtracted.
- csr's columns lie in ⌈log2 cols⌉ bits, 13 here. Unpacking them field by field took 88 ms; moving two, four
  and eight neighbours together in words of 64 bits takes about 45. Columns of 16 bits would take 23.
"""


def matrix(side, zeros):
    """Return a random matrix with a fraction of zeros at random places."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(side, side, generator=generator)
    return weight.masked_fill_(torch.rand(side, side, generator=generator) < zeros, 0)


def two_of_four(weight):
    """Keep the two largest of every four neighbours."""
    groups = weight.reshape(-1, 4)
    small = groups.abs().topk(2, largest=False).indices
    return groups.scatter(1, small, 0).reshape(weight.shape)


def timed(work, given):
    """Return the seconds of wall time, those of the processor, and the result."""
    clock, processor = time.perf_counter(), time.process_time()
    result = work(given)
    return time.perf_counter() - clock, time.process_time() - processor, result


def measure(weight, name):
    """Return the best (wall, processor) seconds of copying, encoding and decoding, and the encoded size."""
    spec = encodings.best_spec(weight, (name,))
    existing, values = np.ones(weight.shape, np.float32), weight.numpy()
    best, encoded = {}, None
    for _ in range(2 if name in SLOW else ROUNDS):
        for step, work in (
            ("copy", lambda _: np.copyto(existing, values)),
            ("new copy", lambda _: values.copy()),
            ("encode", lambda _: encodings.encode(weight, spec)),
            ("decode", encodings.decode),
        ):
            clock, processor, result = timed(work, encoded)
            encoded = result if step == "encode" else encoded
            old = best.get(step, (9e9, 9e9))
            best[step] = (min(old[0], clock), min(old[1], processor))
    assert torch.equal(result.view(torch.int32), weight.view(torch.int32))
    return best, encoded.size


def row(weight, name, zeros, threads):
    """Measure one encoding, and return its row of the table."""
    torch.set_num_threads(threads)
    best, size = measure(weight, name)
    rate = {k: weight.nbytes / clock / 1e9 for k, (clock, _) in best.items()}
    return (
        zeros,
        name,
        str(threads),
        f"{size / weight.nbytes:.3f}",
        f"{size / encodings.bound(weight):.3f}",
        f"{rate['encode']:.2f}",
        f"{rate['decode']:.2f}",
        f"{rate['copy']:.1f}",
        f"{rate['new copy']:.1f}",
        f"{rate['decode'] / rate['copy']:.2f}",
        f"{rate['decode'] / rate['new copy']:.2f}",
        f"{best['copy'][1] / best['decode'][1]:.2f}",
    )


def sizes(side=768):
    """Return {bits of a weight: {encoding: [(zeros, bytes / information bound)]}}, zeros at random places."""
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(side, side, generator=generator)
    values = torch.rand(side, side, generator=generator) + 0.5
    found = {}
    for bits, dtype in ((32, torch.float32), (16, torch.float16), (8, torch.int8)):
        lines = found.setdefault(bits, {name: [] for name in SHOWN})
        for zeros in SPARSITIES:
            kept = (values * 50).to(dtype) * (order >= zeros)
            weight = kept.to(dtype)
            for name in SHOWN:
                size = encodings.size(encodings.best_spec(weight, [name]))
                lines[name].append((zeros, size / encodings.bound(weight)))
    return found


def draw(found):
    """Draw the sizes side by side, with the fraction from which each encoding is the smallest."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(found), figsize=(11, 3.8), sharey=True, layout="constrained")
    for panel, (bits, lines) in zip(panels, found.items()):
        smallest = dict.fromkeys(SHOWN)
        for i, zeros in enumerate(SPARSITIES):
            best = min(SHOWN, key=lambda name: lines[name][i][1])
            smallest[best] = smallest[best] if smallest[best] is not None else zeros
        for name, points in lines.items():
            panel.plot(*zip(*points), label=name.replace("_", " "), lw=1.6)
        wins = [f"{name.replace('_', ' ')} {z:.0%}" for name, z in smallest.items() if z is not None]
        panel.set_title(f"{bits}-bit weights\nsmallest from: " + ", ".join(wins), fontsize=8.5, loc="left")
        panel.axhline(1, color="0.7", lw=0.8)
        panel.set(xlabel="zeros", xlim=(0, 1), ylim=(0.95, 2.5))
        panel.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("bytes / information bound")
    panels[0].legend(fontsize=8, frameon=False, loc="upper left")
    figure.savefig(FIGURE, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small matrix, in seconds; writes nothing")
    parser.add_argument("--figure", action="store_true", help="only draw sizes against sparsity")
    given = parser.parse_args()
    if given.figure:
        draw(sizes())
        return
    quick = given.quick
    side = QUICK_SIDE if quick else SIDE
    columns = (
        "zeros",
        "encoding",
        "threads",
        "of dense",
        "of the bound",
        "encode GB/s",
        "decode GB/s",
    )
    columns += ("copy GB/s", "copy to new memory GB/s", "decode / copy", "decode / new copy")
    columns += ("decode / copy, processor time",)
    rows = []
    for zeros in (0.5, 0.9):
        weight, label = matrix(side, zeros), f"{100 * zeros:.0f} %"
        for name in ("bitmap", "csr", "rice", "run_length", "coo", "csc"):
            for threads in (1,) if name in SLOW else THREADS:
                rows.append(row(weight, name, label, threads))
                print(*rows[-1])
    weight = two_of_four(matrix(side, 0.0))
    rows.append(row(weight, "nm", "2:4", 1))
    table = Table(title=f"{weight.nbytes / 2**20:g} MiB of float32", title_justify="left")
    for column in columns:
        table.add_column(column)
    for one in rows:
        table.add_row(*one)
    Console(width=160).print(table)
    if quick:
        return
    load = os.getloadavg()[0]
    lines = [
        "# Sparse encodings: how fast, how small",
        "",
        f"`python benchmarks/encodings.py`, espalier {espalier.__version__}, torch {torch.__version__}, "
        f"NumPy {np.__version__}, Python {platform.python_version()}, {os.cpu_count()} shared cores "
        f"({platform.machine()}), load {load:.1f} at the end. A matrix of {SIDE} × {SIDE} float32; rates are "
        "bytes of the dense matrix per second, best of a few rounds.",
        "",
        '"Copy" writes to existing memory, "new memory" is what a decoded tensor needs as well. '
        "Where cores are shared the last column, in seconds of the processor, is the steadier one.",
        "",
        "| " + " | ".join(columns) + " |",
        "|" + " --- |" * len(columns),
        *("| " + " | ".join(one) + " |" for one in rows),
    ]
    RESULTS.write_text("\n".join(lines) + "\n" + REMARKS, encoding="utf-8")


if __name__ == "__main__":
    main()
