"""How fast large fp32 products are by torch's own library and by oneDNN, and what whole passes gain.

    OMP_NUM_THREADS=1 python benchmarks/products.py [MODEL …]

MODEL is a folder or a name; without one, BERT of small, base and large width with random weights. Both take
turns within one run, and the best of each counts. Writes results/products.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel, BertConfig

from espalier.engine.products import fast_products, worthwhile

RESULT = Path(__file__).parent / "results/products.md"
SHAPES = ((32, 384, 1536), (1024, 384, 1536), (1024, 768, 3072), (1024, 3072, 768), (8192, 1024, 4096))
WIDTHS = {"small": 384, "base": 768, "large": 1024}
ROUNDS = 7


def best(work: Callable[[], object]) -> tuple[float, float]:
    """Return the best seconds of torch's own products and of those inside."""
    found = [float("inf")] * 2
    for turn in range(-2, 2 * ROUNDS):
        with fast_products() if turn % 2 else nullcontext():
            start = time.perf_counter()
            work()
            taken = time.perf_counter() - start
        if turn >= 0:
            found[turn % 2] = min(found[turn % 2], taken)
    return found[0], found[1]


def products() -> list[str]:
    lines = ["| product | torch, GFLOPS | oneDNN, GFLOPS | times |", "|---|---|---|---|"]
    for rows, inputs, outputs in SHAPES:
        x, w = torch.randn(rows, inputs), torch.randn(outputs, inputs)
        own, fast = best(lambda x=x, w=w: x @ w.T)
        work = 2 * rows * inputs * outputs / 1e9
        lines.append(
            f"| {rows} x {inputs} by {inputs} x {outputs} "
            f"| {work / own:.0f} | {work / fast:.0f} | {own / fast:.2f} |"
        )
    return lines


def passes(names: list[str]) -> list[str]:
    lines = ["| model, 32 texts of 25 tokens | forward | forward and backward |", "|---|---|---|"]
    made = {name: AutoConfig.from_pretrained(name) for name in names}
    made = made or {
        f"BERT, width {width}": BertConfig(
            hidden_size=width,
            intermediate_size=4 * width,
            num_attention_heads=width // 64,
            num_hidden_layers=4,
        )
        for width in WIDTHS.values()
    }
    for name, config in made.items():
        model = AutoModel.from_config(config).eval()
        tokens = torch.randint(0, min(1000, config.vocab_size), (32, 25))

        def forward(model=model, tokens=tokens):
            with torch.no_grad():
                return model(input_ids=tokens)

        def backward(model=model, tokens=tokens):
            model.zero_grad()
            model(input_ids=tokens).last_hidden_state.square().mean().backward()

        ratios = [own / fast for own, fast in map(best, (forward, backward))]
        lines.append(f"| {Path(name).name} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
    return lines


def main() -> None:
    torch.set_num_threads(1)
    text = [
        "# Products of fp32 matrices",
        "",
        "One thread; times faster inside `fast_products` than outside, the best of "
        f"{ROUNDS} turns each. It is {'' if worthwhile() else 'not '}used on this processor.",
        "",
        *products(),
        "",
        *passes(sys.argv[1:]),
    ]
    RESULT.write_text("\n".join(text) + "\n")
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
