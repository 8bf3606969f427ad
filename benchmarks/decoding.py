"""Tokens per second of greedy decoding, with the cache of keys and values in the exported file and without.

    python benchmarks/decoding.py [MODEL] [--to onnx,openvino] [--prompt 64] [--new 64] [--rounds 3]

MODEL is a folder of a causal language model; without one, a Llama of four layers with random weights. One
thread. Every engine takes its turn in every round; a round generates as many tokens from the same prompt.
Counted are seconds of the processor, not of the clock, so that others on the machine matter little; shown
is the median. A text that is not the same in every engine is reported.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers

import espalier
from espalier.experiment.exporter import load_any
from espalier.exporters.generation import Generator, open_generator

SMALL = {  # of a Llama with about five million weights
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
}


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("model", nargs="?")
    ask.add_argument("--to", default="onnx,openvino")
    ask.add_argument("--prompt", type=int, default=64)
    ask.add_argument("--new", type=int, default=64)
    ask.add_argument("--rounds", type=int, default=3)
    given = ask.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if given.model:
        model = load_any(given.model, dtype=torch.float32)
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).eval()
    prompt = torch.randint(3, model.config.vocab_size, (1, given.prompt))
    with TemporaryDirectory() as work:
        engines: dict[str, Callable[[int], Any]] = {"torch with its cache": _torch(model, prompt)}
        for to in given.to.split(","):
            for cached in (True, False):
                place = Path(work) / f"{to}-{cached}"
                record = espalier.export(model, place, to=to, kv_cache=cached)
                if record["cache"] != cached:
                    raise SystemExit(f"{to} has no cache: {record['cache_refused']}")
                name = f"{to} {'with' if cached else 'without'} a cache"
                engines[name] = _exported(open_generator(place, threads=1), prompt)
        seconds = _time(engines, given.new, given.rounds)
    for name, taken in seconds.items():
        print(f"{name}: {given.new / statistics.median(taken):.1f} tokens per second", flush=True)
    for to in given.to.split(","):
        with_cache, without = (
            statistics.median(seconds[f"{to} {one} a cache"]) for one in ("with", "without")
        )
        print(f"{to}: the cache makes decoding {without / with_cache:.1f} times as fast", flush=True)


def _torch(model: Any, prompt: torch.Tensor) -> Callable[[int], Any]:
    def generate(new: int) -> Any:
        how = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
        return model.generate(prompt, attention_mask=torch.ones_like(prompt), **how).tolist()

    return generate


def _exported(opened: Generator, prompt: torch.Tensor) -> Callable[[int], Any]:
    endless = Generator(opened.run, opened.inputs)
    return lambda new: endless.generate(prompt.numpy(), max_new_tokens=new).tolist()


def _time(engines: dict[str, Callable[[int], Any]], new: int, rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(rounds + 1):  # the first warms up
        texts = []
        for name, generate in engines.items():
            start = time.process_time()
            texts.append(generate(new))
            if number:
                seconds[name].append(time.process_time() - start)
        if any(text != texts[0] for text in texts):
            print("not all engines gave the same text", flush=True)
    return seconds


if __name__ == "__main__":
    main()
