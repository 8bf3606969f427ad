"""Does sparsity make it faster? python benchmarks/sparse_speed.py MODEL [OUT.md]

Three things, each beside its dense twin on the same batch and in turns: the model with single weights zeroed,
the model with heads and neurons cut to about as many living block weights, and one feed-forward matrix
as torch's CSR against the dense product.
"""

import sys
import time
from copy import deepcopy
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification

import espalier
from espalier import criteria
from espalier.evaluation.latency import side_by_side

ROUNDS, TOKENS, BATCH = 10, 64, 8


def structured(model, keep):
    """Heads and neurons by magnitude, the same share of each: about the share of block weights too."""
    small = deepcopy(model)
    for kind in ("heads", "neurons"):
        sites = espalier.sites(small, kind)
        scores = criteria.load("magnitude")(small, sites)
        espalier.cut(small, espalier.per_layer(scores, keep), report=False)
    return small


def sparse(model, keep):
    small = deepcopy(model)
    sites = espalier.sites(small, "weights")
    return espalier.zero(small, espalier.lowest(criteria.load("magnitude")(small, sites), keep))


def block_weights(model):
    return sum(int((s.linear.weight != 0).sum()) for s in espalier.sites(model, "weights"))


def whole_models(path):
    model = AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32).eval()
    torch.manual_seed(0)
    ids = torch.randint(1000, 2000, (BATCH, TOKENS))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    rows, said = [], []
    for keep in (0.5, 0.2):
        three = [model, sparse(model, keep), structured(model, keep)]
        best = side_by_side(three, batch, ROUNDS)
        gone = f"{100 * (1 - keep):.0f} %"
        for name, one, spent in zip(("dense", "single weights zero", "heads and neurons cut"), three, best):
            rows.append(
                f"| {gone} | {name} | {block_weights(one) / 1e6:.2f}M | "
                f"{1e3 * spent:.1f} | {best[0] / spent:.2f}× |"
            )
        said.append(
            f"With {gone} of the block weights zero the model runs at {best[0] / best[1]:.2f} times the "
            f"dense speed; cut by heads and neurons to {block_weights(three[2]) / 1e6:.2f}M of them, at "
            f"{best[0] / best[2]:.2f} times."
        )
    return rows, said, model


def one_matrix(model):
    """The first matrix of the feed-forward part, times the tokens of the batch."""
    weight = next(
        s.linear.weight.detach() for s in espalier.sites(model, "weights") if len(set(s.shape)) == 2
    )
    x = torch.randn(weight.shape[1], BATCH * TOKENS)
    rows, faster = [], []
    for share in (0.5, 0.7, 0.8, 0.9, 0.95):
        edge = weight.abs().flatten().kthvalue(int(share * weight.numel())).values
        zeroed = weight.masked_fill(weight.abs() <= edge, 0)
        csr = zeroed.to_sparse_csr()
        assert torch.allclose(csr @ x, zeroed @ x, atol=1e-4)
        best = [float("inf")] * 2
        for _ in range(5 * ROUNDS):
            for i, matrix in enumerate((zeroed, csr)):
                start = time.process_time()  # one thread: whoever shares the core does not count
                matrix @ x
                best[i] = min(best[i], time.process_time() - start)
        shape = " × ".join(map(str, weight.shape))
        rows.append(
            f"| {100 * share:.0f} % | {shape} | {1e3 * best[0]:.2f} | {1e3 * best[1]:.2f} | "
            f"{best[0] / best[1]:.2f}× |"
        )
        if best[1] < best[0]:
            faster.append(f"{100 * share:.0f} %")
    return (
        rows,
        f"Torch's CSR product is faster than the dense one at: {', '.join(faster) or 'none'}.",
    )


def main():
    torch.set_num_threads(1)
    path = sys.argv[1]
    models, said, model = whole_models(path)
    products, kernels = one_matrix(model)
    lines = [
        "# Are sparse models faster?",
        "",
        f"`python benchmarks/sparse_speed.py {Path(path).name}`: one thread, {BATCH} sequences of {TOKENS} "
        f"tokens, the fastest of {ROUNDS} passes in turns, torch {torch.__version__}, float32. The "
        "machine was shared: compare lines with each other only.",
        "",
        "| gone | model | block weights left | ms | against dense |",
        "| --- | --- | --- | --- | --- |",
        *models,
        "",
        "One feed-forward matrix times the same tokens, dense with zeros in it against `to_sparse_csr()`, "
        "in time of the processor, the fastest of 50:",
        "",
        "| zeros | matrix | dense ms | CSR ms | against dense |",
        "| --- | --- | --- | --- | --- |",
        *products,
        "",
        *said,
        kernels,
        "",
    ]
    text = "\n".join(lines)
    print(text)
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
