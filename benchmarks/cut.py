"""What a cut costs, and what it buys.

    python benchmarks/cut.py            writes benchmarks/results/cut.md as well

Three questions, each in a process of its own, one torch thread:
- time of cutting half of all heads and neurons, against copying the weights once;
- peak memory while cutting, against the model's own size;
- latency of the cut encoder, against the speed-up its multiply-accumulates promise.
"""

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
MODELS = {
    "BERT-base, float32": lambda: random_model(BertModel, BertConfig(), torch.float32),
    "Llama of 1.2 billion, bfloat16": lambda: random_model(
        LlamaForCausalLM, LlamaConfig(**LLAMA), torch.bfloat16
    ),
}


def random_model(cls, config, dtype):
    """Built on the meta device and filled: transformers' own initialisation takes minutes on a CPU."""
    with torch.device("meta"):
        model = cls(config).to(dtype)
    model = model.to_empty(device="cpu").eval()
    model.tie_weights()
    with torch.no_grad():
        for p in model.parameters():
            p.uniform_(-0.05, 0.05)
        for buffer in model.buffers():  # positions and rotary frequencies: any legal number will do
            buffer.zero_()
    return model


def half(model, *kinds):
    """A random half of the units of every site."""
    generator = torch.Generator().manual_seed(0)
    mask = Mask()
    for site in sites(model, *kinds):
        keep = torch.randperm(site.units, generator=generator)[: site.units // 2]
        mask[site.name] = torch.zeros(site.units, dtype=torch.bool).index_fill(0, keep, True)
    return mask


def memory(which):
    """Kilobytes from /proc: `VmHWM` is the peak so far, `VmRSS` is now."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{which}:\s+(\d+)", status)[1])


def forget_peak():
    Path("/proc/self/clear_refs").write_text("5")  # Linux: VmHWM starts again from now


def copy_seconds(model, rounds):
    """Copying every weight once, one at a time."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for p in model.parameters():
            p.detach().clone()
        best = min(best, time.perf_counter() - start)
    return best


def cutting(name, rounds):
    """Seconds and bytes of one cut, the best of a few fresh models."""
    out = {"cut": float("inf"), "copy": float("inf"), "extra": 0}
    for _ in range(rounds):
        model = MODELS[name]()
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        out["copy"] = min(out["copy"], copy_seconds(model, 2))
        mask, before = half(model), cost(model)
        forget_peak()
        now, start = memory("VmRSS"), time.perf_counter()
        cut(model, mask, report=False)
        out["cut"] = min(out["cut"], time.perf_counter() - start)
        out["extra"] = max(out["extra"], 1024 * (memory("VmHWM") - now))
        after = cost(model)
    return out | {"size": size, "before": before.dict(), "after": after.dict()}


def latency(rounds=8):
    """The dense encoder and two cut ones, in turns: 8 sequences of 128 tokens."""
    models = {"whole": random_model(BertModel, BertConfig(), torch.float32)}
    for kinds in (("heads",), ("neurons",), ("heads", "neurons")):
        model = random_model(BertModel, BertConfig(), torch.float32)
        models["half of the " + " and ".join(kinds)] = cut(model, half(model, *kinds), report=False)
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


def in_its_own_process(*job):
    code = [sys.executable, __file__, "--job", *map(str, job)]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{job}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def run_job(name, *rest):
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    print(json.dumps(latency() if name == "latency" else cutting(rest[0], int(rest[1]))))


def report(title, columns, rows, lines):
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)
    lines += [f"\n## {title}\n", "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]


def main():
    lines = [
        "# What a cut costs, and what it buys",
        "",
        f"`python benchmarks/cut.py`, espalier {espalier.__version__}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, Python {platform.python_version()}, one thread on "
        f"{os.cpu_count()} cores ({platform.machine()}).",
    ]
    rows = []
    for name, rounds in zip(MODELS, (5, 2)):
        got = in_its_own_process("cutting", name, rounds)
        rows.append(
            (
                name,
                f"{got['before']['parameters'] / 1e6:.1f} M → {got['after']['parameters'] / 1e6:.1f} M",
                f"{got['copy']:.3f} s",
                f"{got['cut']:.3f} s",
                f"{got['cut'] / got['copy']:.2f}",
                f"{got['size'] / 1e6:.0f} MB",
                f"{got['extra'] / 1e6:.0f} MB ({got['extra'] / got['size']:.2f})",
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

    got = in_its_own_process("latency")
    whole = got.pop("whole")
    rows = []
    for name, one in got.items():
        ideal, real = whole["macs"] / one["macs"], whole["seconds"] / one["seconds"]
        rows.append(
            (
                name,
                f"{whole['seconds'] * 1000:.0f} → {one['seconds'] * 1000:.0f} ms",
                f"{real:.2f}×",
                f"{ideal:.2f}×",
                f"{100 * real / ideal:.0f} %",
            )
        )
    columns = (
        "BERT-base without",
        "latency",
        "speed-up",
        "ideal, by MACs",
        "reached (at least 90 %)",
    )
    report("Latency at batch 8, 128 tokens", columns, rows, lines)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        run_job(*sys.argv[2:])
    else:
        main()
