"""What a cut costs in time and memory, and how much faster the model is afterwards.

    python benchmarks/cut.py            writes benchmarks/results/cut.md as well
    python benchmarks/cut.py --quick    tiny models, in seconds; writes nothing

Three measurements, each in a process of its own, with one thread:
- time of cutting half of all heads and neurons, against copying the weights once;
- peak memory while cutting, against the model's own size;
- latency of the cut encoder, against the speed-up expected from its multiply-accumulates.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.table import Table
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

import espalier
from espalier import Mask, cost, cut, sites

RESULTS = Path(__file__).parent / "results" / "cut.md"
LLAMA = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}
QUICK_BERT = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2}
QUICK_LLAMA = {**QUICK_BERT, "vocab_size": 500, "num_key_value_heads": 2, "tie_word_embeddings": True}


def bert(quick):
    return random_model(BertModel, BertConfig(**QUICK_BERT if quick else {}), torch.float32)


def llama(quick):
    return random_model(LlamaForCausalLM, LlamaConfig(**QUICK_LLAMA if quick else LLAMA), torch.bfloat16)


MODELS = {"BERT-base, float32": bert, "Llama of 1.2 billion, bfloat16": llama}


def random_model(cls, config, dtype):
    """Build a model on the meta device and fill it: the usual initialisation takes minutes on a CPU."""
    with torch.device("meta"):
        model = cls(config).to(dtype)
    model = model.to_empty(device="cpu").eval()
    model.tie_weights()
    with torch.no_grad():
        for p in model.parameters():
            p.uniform_(-0.05, 0.05)
        for buffer in model.buffers():  # positions and rotary frequencies: any valid number will do
            buffer.zero_()
    return model


def half(model, *targets):
    """Return a mask that keeps a random half of the units of every site."""
    generator = torch.Generator().manual_seed(0)
    mask = Mask()
    for site in sites(model, *targets):
        keep = torch.randperm(site.units, generator=generator)[: site.units // 2]
        mask[site.name] = torch.zeros(site.units, dtype=torch.bool).index_fill(0, keep, True)
    return mask


def memory(which):
    """Return kilobytes from /proc: `VmHWM` is the peak so far, `VmRSS` is now."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{which}:\s+(\d+)", status)[1])


def reset_peak():
    """Count VmHWM from here; Linux only."""
    Path("/proc/self/clear_refs").write_text("5")


def copy_seconds(model, rounds):
    """Time copying every weight once, one at a time."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for p in model.parameters():
            p.detach().clone()
        best = min(best, time.perf_counter() - start)
    return best


def measure_cut(name, rounds, quick):
    """Measure the seconds and bytes of one cut, the best of a few new models."""
    out = {"cut": float("inf"), "copy": float("inf"), "extra": 0}
    for _ in range(rounds):
        model = MODELS[name](quick)
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        out["copy"] = min(out["copy"], copy_seconds(model, 2))
        mask, before = half(model), cost(model)
        reset_peak()
        now, start = memory("VmRSS"), time.perf_counter()
        cut(model, mask, report=False)
        out["cut"] = min(out["cut"], time.perf_counter() - start)
        out["extra"] = max(out["extra"], 1024 * (memory("VmHWM") - now))
        after = cost(model)
    return out | {"size": size, "before": before.dict(), "after": after.dict()}


def measure_latency(quick, rounds=8):
    """Time the dense encoder and three cut ones, in turns, on 8 sequences of 128 tokens."""
    models = {"dense": bert(quick)}
    for targets in (("heads",), ("neurons",), ("heads", "neurons")):
        model = bert(quick)
        models["half of the " + " and ".join(targets)] = cut(model, half(model, *targets), report=False)
    ids = torch.randint(0, 30000, (8, 128))
    best = dict.fromkeys(models, float("inf"))
    with torch.inference_mode():
        for _ in range(rounds):
            for name, model in models.items():
                start = time.perf_counter()
                model(input_ids=ids)
                best[name] = min(best[name], time.perf_counter() - start)
    macs = {name: cost(model, tokens=128).macs for name, model in models.items()}
    return {name: {"seconds": best[name], "macs": macs[name]} for name in models}


def run_job(*job, quick):
    """Run one measurement in a process of its own, and return its result."""
    command = [sys.executable, __file__, *["--quick"] * quick, "--job", *map(str, job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{job}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def do_job(quick, name, *rest):
    """Print the result of one measurement as JSON."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    found = measure_latency(quick) if name == "latency" else measure_cut(rest[0], int(rest[1]), quick)
    print(json.dumps(found))


def report(title, columns, rows, lines):
    """Print a table, and add it to the lines of the results file."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)
    lines += [f"\n## {title}\n", "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]


def main(quick):
    """Run every measurement, print the tables and write the results file."""
    if quick:
        print("Quick run: tiny models of the architectures named below.")
    lines = [
        "# What a cut costs, and how much faster the model is",
        "",
        f"`python benchmarks/cut.py`, espalier {espalier.__version__}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, Python {platform.python_version()}, one thread on "
        f"{os.cpu_count()} cores ({platform.machine()}).",
    ]
    rows = []
    for name, rounds in zip(MODELS, (5, 2)):
        found = run_job("cut", name, rounds, quick=quick)
        rows.append(
            (
                name,
                f"{found['before']['parameters'] / 1e6:.1f} M → {found['after']['parameters'] / 1e6:.1f} M",
                f"{found['copy']:.3f} s",
                f"{found['cut']:.3f} s",
                f"{found['cut'] / found['copy']:.2f}",
                f"{found['size'] / 1e6:.0f} MB",
                f"{found['extra'] / 1e6:.0f} MB ({found['extra'] / found['size']:.2f})",
            )
        )
    columns = (
        "model",
        "parameters",
        "copying once",
        "cutting",
        "copies",
        "size",
        "extra memory at the peak",
    )
    report("Cutting half of the heads and neurons (at most 3 copies)", columns, rows, lines)

    found = run_job("latency", quick=quick)
    dense = found.pop("dense")
    rows = []
    for name, one in found.items():
        ideal, real = dense["macs"] / one["macs"], dense["seconds"] / one["seconds"]
        rows.append(
            (
                name,
                f"{dense['seconds'] * 1000:.0f} → {one['seconds'] * 1000:.0f} ms",
                f"{real:.2f}×",
                f"{ideal:.2f}×",
                f"{100 * real / ideal:.0f} %",
            )
        )
    columns = (
        "removed from BERT-base",
        "latency",
        "speed-up",
        "ideal, by MACs",
        "reached (at least 90 %)",
    )
    report("Latency at batch 8, 128 tokens", columns, rows, lines)
    if not quick:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny models, in seconds; writes nothing")
    parser.add_argument("--job", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        do_job(arguments.quick, *arguments.job)
    else:
        main(arguments.quick)
