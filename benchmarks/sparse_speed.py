"""Does sparsity make a model faster? python benchmarks/sparse_speed.py MODEL [OUT.md]

Three things, each timed in turns with the dense model on the same batch: the model with single weights set to
zero, the model with heads and neurons cut to about as many block weights, and one feed-forward matrix as
torch's CSR against the dense product. `--rounds 1` is a quick run.
"""

import argparse
import time
from copy import deepcopy
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification

import espalier
from espalier import criteria, remove_lowest
from espalier.evaluation.latency import time_models

ROUNDS, TOKENS, BATCH_SIZE = 10, 64, 8


def structured(model, remove):
    """Cut a fraction of the heads and of the neurons of each layer by magnitude; block weights follow."""
    small = deepcopy(model)
    for target in ("heads", "neurons"):
        scores = criteria.load("magnitude")(small, espalier.sites(small, target))
        espalier.cut(small, remove_lowest(scores, remove, scope="layer"), report=False)
    return small


def sparse(model, remove):
    """Set a fraction of the block weights to zero by magnitude."""
    small = deepcopy(model)
    scores = criteria.load("magnitude")(small, espalier.sites(small, "weights"))
    return espalier.zero(small, remove_lowest(scores, remove))


def block_weights(model):
    """Count the block weights that are not zero."""
    return sum(int((s.linear.weight != 0).sum()) for s in espalier.sites(model, "weights"))


def measure_models(path, rounds):
    """Return the rows of the first table, sentences about them, and the dense model."""
    model = AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32).eval()
    torch.manual_seed(0)
    ids = torch.randint(1000, 2000, (BATCH_SIZE, TOKENS))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    rows, sentences = [], []
    for remove in (0.5, 0.8):
        three = [model, sparse(model, remove), structured(model, remove)]
        best = [found.best for found in time_models(three, batch, rounds)]
        removed = f"{100 * remove:.0f} %"
        for name, one, spent in zip(("dense", "single weights zero", "heads and neurons cut"), three, best):
            rows.append(
                f"| {removed} | {name} | {block_weights(one) / 1e6:.2f}M | "
                f"{1e3 * spent:.1f} | {best[0] / spent:.2f}× |"
            )
        sentences.append(
            f"With {removed} of the block weights zero the model runs at {best[0] / best[1]:.2f} times the "
            f"dense speed; cut by heads and neurons to {block_weights(three[2]) / 1e6:.2f}M of them, at "
            f"{best[0] / best[2]:.2f} times."
        )
    return rows, sentences, model


def time_products(model, rounds):
    """Time the first feed-forward matrix times the tokens of the batch; return rows and a sentence."""
    weight = next(
        s.linear.weight.detach() for s in espalier.sites(model, "weights") if len(set(s.shape)) == 2
    )
    x = torch.randn(weight.shape[1], BATCH_SIZE * TOKENS)
    rows, faster = [], []
    for zeros in (0.5, 0.7, 0.8, 0.9, 0.95):
        edge = weight.abs().flatten().kthvalue(int(zeros * weight.numel())).values
        zeroed = weight.masked_fill(weight.abs() <= edge, 0)
        csr = zeroed.to_sparse_csr()
        assert torch.allclose(csr @ x, zeroed @ x, atol=1e-4)
        best = [float("inf")] * 2
        for _ in range(5 * rounds):
            for i, matrix in enumerate((zeroed, csr)):
                start = time.process_time()  # one thread: other programs do not count
                matrix @ x
                best[i] = min(best[i], time.process_time() - start)
        shape = " × ".join(map(str, weight.shape))
        rows.append(
            f"| {100 * zeros:.0f} % | {shape} | {1e3 * best[0]:.2f} | {1e3 * best[1]:.2f} | "
            f"{best[0] / best[1]:.2f}× |"
        )
        if best[1] < best[0]:
            faster.append(f"{100 * zeros:.0f} %")
    return (
        rows,
        f"Torch's CSR product is faster than the dense one at: {', '.join(faster) or 'none'}.",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of a sequence classifier")
    parser.add_argument("output", nargs="?", type=Path, help="Markdown file to write")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path, rounds = arguments.model, arguments.rounds
    models, sentences, model = measure_models(path, rounds)
    products, kernels = time_products(model, rounds)
    lines = [
        "# Are sparse models faster?",
        "",
        f"`python benchmarks/sparse_speed.py {Path(path).name}`: one thread, {BATCH_SIZE} sequences of "
        f"{TOKENS} tokens, the fastest of {rounds} passes in turns, torch {torch.__version__}, float32. The "
        "machine was shared: compare lines with each other only.",
        "",
        "| removed | model | block weights left | ms | against dense |",
        "| --- | --- | --- | --- | --- |",
        *models,
        "",
        "One feed-forward matrix times the same tokens, dense with zeros in it against `to_sparse_csr()`, "
        f"in processor time, the fastest of {5 * rounds}:",
        "",
        "| zeros | matrix | dense ms | CSR ms | against dense |",
        "| --- | --- | --- | --- | --- |",
        *products,
        "",
        *sentences,
        kernels,
        "",
    ]
    text = "\n".join(lines)
    print(text)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
