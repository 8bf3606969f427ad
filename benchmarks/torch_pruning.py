"""espalier beside Torch-Pruning: which models each can take half of the heads from, and how long it takes.

    python benchmarks/torch_pruning.py                 both tables, about ten minutes on one core
    python benchmarks/torch_pruning.py --rounds 1      quicker, noisier

Torch-Pruning lives in an environment of its own, `benchmarks/.venv-torch-pruning`, made the first time.
Every case is a process of its own, started one after the other, with one thread: this file again, with
`--case`, which answers with one line of JSON. The result is also written to `benchmarks/results/`.
"""

# It asks for head pruning in the one way that does it in 1.6.1: `pruning_ratio` must not be 0 or heads
# stay too, `prune_head_dims` must be off or heads are thinned as well, and everything else is ignored.
from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ENVIRONMENT = HERE / ".venv-torch-pruning"
RESULT = HERE / "results" / "torch_pruning.md"
PACKAGES = ["torch==2.13.0", "transformers", "torch-pruning==1.6.1", "safetensors"]
PATIENCE = 60  # seconds for a tiny model
LONG_PATIENCE = 1800  # seconds for a timing
LIGHT_REPEATS = 5  # in each process, for work of less than a second

# What makes the heads of a family and, last, what writes them back: the ends of module names.
BERT = ["attention.self.query", "attention.self.key", "attention.self.value"]
HEADS = {
    "bert": [*BERT, "attention.output.dense"],
    "roberta": [*BERT, "attention.output.dense"],
    "xlm-roberta": [*BERT, "attention.output.dense"],
    "albert": ["attention.query", "attention.key", "attention.value", "attention.dense"],
    "distilbert": ["attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"],
    "gpt2": ["attn.c_attn", "attn.c_proj"],
    "llama": [f"self_attn.{letter}_proj" for letter in "qkvo"],
    "vit": [f"attention.{letter}_proj" for letter in "qkvo"],
}
SIZES = {
    "vocab_size": 500,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 64,
}
MORE_SIZES = {
    "albert": {"embedding_size": 64},
    "distilbert": {"hidden_dim": 256},
    "gpt2": {"n_inner": 256, "bos_token_id": 1, "eos_token_id": 2},
    "llama": {"num_key_value_heads": 2},
    "vit": {"image_size": 32, "patch_size": 8},
}
# What else was tried with the other tool: the family, then how it was helped.
HELPED = ["gpt2, cache off", "gpt2, cache off, qkv unpacked by hand", "llama, cache off, eager"]
KEEP = 0.5

# ------------------------------------------------------------------------------------------ material


def tiny(family: str) -> Any:
    """A small random model, the same for both tools, with biases and norms that are not 0 and 1."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {**SIZES, **MORE_SIZES.get(family, {})}
    config = transformers.AutoConfig.for_model(family, **sizes)
    model = transformers.AutoModel.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def inputs(model: Any) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(1)
    if model.main_input_name == "pixel_values":
        size = model.config.image_size
        return {"pixel_values": torch.randn(2, 3, size, size, generator=generator)}
    return {"input_ids": torch.randint(4, 500, (2, 16), generator=generator)}


def answer(model: Any, given: dict[str, Any]) -> Any:
    import torch

    with torch.no_grad():
        return model(**given).last_hidden_state  # [batch, tokens, width]


def parameters(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


def ending(model: Any, end: str) -> list[Any]:
    """The modules whose name ends like this, in forward order."""
    return [module for name, module in model.named_modules() if name.endswith(end)]


# ------------------------------------------------------------------------------------------ the check


def by_input(linear: Any) -> Any:
    """[inputs, outputs] of a Linear, or of GPT-2's transposed Conv1D."""
    weight = linear.weight.detach()
    return weight if hasattr(linear, "nf") else weight.t()


def kept_columns(before: Any, after: Any) -> Any:
    """[inputs]: which input columns of an output projection are still there, found by their values."""
    same = (by_input(after)[:, None] == by_input(before)[None]).all(-1)  # [left, inputs]
    return same.any(0)


@contextmanager
def zeroed(writers: list[Any], kept: list[Any]) -> Iterator[None]:
    """The removed columns get zeros for input, in the original model."""
    handles = [
        writer.register_forward_pre_hook(lambda _, args, k=k: (args[0] * k, *args[1:]))
        for writer, k in zip(writers, kept)
    ]
    yield
    for handle in handles:
        handle.remove()


def compare(original: Any, pruned: Any, family: str, given: dict[str, Any]) -> dict[str, Any]:
    """What was removed, and how far the pruned model is from the original with just that zeroed."""
    writers = ending(original, HEADS[family][-1])
    kept = [kept_columns(a, b) for a, b in zip(writers, ending(pruned, HEADS[family][-1]))]
    by_head = [k.view(SIZES["num_attention_heads"], -1) for k in kept]  # [heads, head size]
    with zeroed(writers, kept):
        want = answer(original, given)
    return {
        "before": parameters(original),
        "after": parameters(pruned),
        "heads before": sum(len(k) for k in by_head),
        "heads after": sum(int(k.all(1).sum()) for k in by_head),
        "whole": all(bool((k.all(1) | ~k.any(1)).all()) for k in by_head),
        "difference": far(answer(pruned, given), want),
    }


def far(a: Any, b: Any) -> float:
    return float((a - b).abs().max())


def reload(model: Any, given: dict[str, Any], save: Callable, load: Callable) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            save(model, folder)
            again = load(folder).eval()
            apart = far(answer(again, given), answer(model, given))
        except Exception as error:
            return f"no: {first_line(error)}"
    return "yes" if apart == 0 else f"loads, but differs by {apart:.1e}"


def from_pretrained(folder: str) -> Any:
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder)


def first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__


# ------------------------------------------------------------------------------------------ espalier


def espalier_takes_half(family: str) -> dict[str, Any]:
    import espalier
    from espalier import criteria

    original, pruned = tiny(family), tiny(family)
    given = inputs(original)
    sites = espalier.sites(pruned, "heads")
    scores = criteria.load("magnitude")(pruned, sites)
    mask = espalier.Mask()
    for name, score in scores.items():  # half of each layer, as the other tool is asked to
        mask.update(espalier.lowest(espalier.Scores({name: score}), keep=KEEP))
    espalier.cut(pruned, mask)
    found = compare(original, pruned, family, given)
    with espalier.masked(original, mask):
        masked = far(answer(pruned, given), answer(original, given))
    return {
        **found,
        "difference": max(found["difference"], masked),
        "from_pretrained": reload(pruned, given, espalier.save, from_pretrained),
        "own way": reload(pruned, given, espalier.save, espalier.load),
    }


def espalier_scores_and_cuts(criterion: str) -> Callable[[Any], None]:
    import espalier
    from espalier import criteria

    batches = espalier.Batches(calibration())

    def work(model: Any) -> None:
        scores = criteria.load(criterion)(model, espalier.sites(model, "heads"), batches)
        espalier.cut(model, espalier.lowest(scores, keep=KEEP))

    return work


def espalier_cuts() -> Callable[[Any], None]:
    import torch

    import espalier

    def work(model: Any) -> None:
        sites = espalier.sites(model, "heads")
        every_other = {s.name: torch.arange(s.units) % 2 == 0 for s in sites}
        espalier.cut(model, espalier.Mask(every_other))

    return work


# ------------------------------------------------------------------------------------------ Torch-Pruning


def pruner(model: Any, family: str, given: Any, importance: Any, **options: Any) -> Any:
    """The glue a user has to write: name q, k and v, say their heads, ignore all other layers."""
    import torch_pruning
    from torch import nn

    *reads, _ = HEADS[family]
    grouped = getattr(model.config, "num_key_value_heads", None)
    heads = {
        module: grouped if grouped and i > 0 else model.config.num_attention_heads
        for i, end in enumerate(reads)
        for module in ending(model, end)
    }
    others = [m for m in model.modules() if not list(m.children()) and m not in heads]
    return torch_pruning.pruner.BasePruner(
        model,
        given,
        importance,
        ignored_layers=others,
        num_heads=heads,
        prune_num_heads=True,
        prune_head_dims=False,
        head_pruning_ratio=1 - KEEP,
        pruning_ratio=1 - KEEP,
        in_channel_groups={},  # the defaults are shared between pruners
        out_channel_groups={},
        root_module_types=[nn.Linear],
        **options,
    )


def peer_takes_half(what: str) -> dict[str, Any]:
    import torch_pruning

    family, *help_ = what.split(", ")
    original, pruned = tiny(family), tiny(family)
    given = inputs(original)
    pruned.config.use_cache = "cache off" not in help_
    if "eager" in help_:  # what its own rule for grouped queries was written for
        pruned.set_attn_implementation("eager")
    if "qkv unpacked by hand" in help_:
        unpack(pruned)
        HEADS["gpt2"] = [f"c_attn.{letter}" for letter in "qkv"] + ["attn.c_proj"]
    importance = torch_pruning.importance.GroupMagnitudeImportance(p=2)
    pruner(
        pruned, family, given, importance, output_transform=lambda out: out.last_hidden_state.sum()
    ).step()
    if "qkv unpacked by hand" in help_:
        pack(pruned)
    return {
        **compare(original, pruned, family, given),
        "from_pretrained": reload(
            pruned, given, lambda m, folder: m.save_pretrained(folder), from_pretrained
        ),
        "own way": reload(pruned, given, pickle_model, unpickle_model),
    }


def pickle_model(model: Any, folder: str) -> None:
    import torch_pruning

    model.zero_grad()
    torch_pruning.save(model, Path(folder, "model.pth"))


def unpickle_model(folder: str) -> Any:
    import torch_pruning

    return torch_pruning.load(Path(folder, "model.pth"), weights_only=False)


def unpack(model: Any) -> None:
    """Replace each packed Conv1D of GPT-2's attention by plain linears that a graph tracer can follow."""
    import torch
    from torch import nn

    class Three(nn.ModuleDict):
        def forward(self, x: Any) -> Any:
            return torch.cat([self[letter](x) for letter in "qkv"], -1)

    def linear(weight: Any, bias: Any) -> Any:
        made = nn.Linear(*weight.shape)
        made.weight.data, made.bias.data = weight.t().clone(), bias.clone()
        return made

    for attention in ending(model, ".attn"):
        packed, out = attention.c_attn, attention.c_proj
        weights, biases = packed.weight.data.chunk(3, 1), packed.bias.data.chunk(3)
        attention.c_attn = Three(
            {letter: linear(w, b) for letter, w, b in zip("qkv", weights, biases)}
        )
        attention.c_proj = linear(out.weight.data, out.bias.data)


def pack(model: Any) -> None:
    """Back to transformers' own modules."""
    import torch
    from transformers.pytorch_utils import Conv1D

    def conv(linears: list[Any]) -> Any:
        weight = torch.cat([part.weight.data for part in linears]).t()
        made = Conv1D(weight.shape[1], weight.shape[0])
        made.weight.data = weight.contiguous()
        made.bias.data = torch.cat([part.bias.data for part in linears])
        return made

    for attention in ending(model, ".attn"):
        attention.split_size = attention.c_proj.in_features
        attention.c_attn = conv([attention.c_attn[letter] for letter in "qkv"])
        attention.c_proj = conv([attention.c_proj])


def peer_scores_and_cuts(importance: str, *, frozen: bool = False) -> Callable[[Any], None]:
    import torch_pruning

    batches = calibration()
    example = {"input_ids": batches[0]["input_ids"][:1, :8]}

    def work(model: Any) -> None:
        score = getattr(torch_pruning.importance, importance)()
        made = pruner(model, "bert", example, score, global_pruning=True)
        if importance == "GroupTaylorImportance":
            if frozen:  # it reads the gradients of these only
                wanted = {
                    id(module.weight) for end in HEADS["bert"] for module in ending(model, end)
                }
                for parameter in model.parameters():
                    parameter.requires_grad_(id(parameter) in wanted)
            forward_and_backward(batches)(model)
        made.step()

    return work


# ------------------------------------------------------------------------------------------ by hand


def calibration() -> list[dict[str, Any]]:
    """64 sequences of 64 tokens in batches of 8, and labels."""
    import torch

    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(1000, 30000, (8, 8, 64), generator=generator)
    labels = torch.randint(0, 2, (8, 8), generator=generator)
    return [{"input_ids": i, "labels": y} for i, y in zip(ids, labels)]


def forward(batches: list[dict[str, Any]]) -> Callable[[Any], None]:
    import torch

    def work(model: Any) -> None:
        with torch.no_grad():
            for batch in batches:
                model(**batch)

    return work


def forward_and_backward(batches: list[dict[str, Any]]) -> Callable[[Any], None]:
    def work(model: Any) -> None:
        for batch in batches:
            model(**batch).loss.backward()

    return work


def gate_gradients(model: Any, batches: list[dict[str, Any]]) -> Any:
    """[layers, heads]: |∂loss/∂gate| (Michel et al. 2019), a gate before each output projection."""
    import torch

    model.requires_grad_(False)
    heads = model.config.num_attention_heads
    writers = ending(model, HEADS["bert"][-1])
    gates = torch.ones(len(writers), heads, requires_grad=True)
    handles = []
    for i, writer in enumerate(writers):
        per_head = writer.in_features // heads

        def gate(_: Any, args: Any, i: int = i, per_head: int = per_head) -> Any:
            return (args[0] * gates[i].repeat_interleave(per_head),)

        handles.append(writer.register_forward_pre_hook(gate))
    total = torch.zeros_like(gates)
    for batch in batches:
        (gradient,) = torch.autograd.grad(model(**batch).loss, gates)
        total += gradient.abs()
    for handle in handles:
        handle.remove()
    return total


def squared_weights(model: Any) -> Any:
    """[layers, heads]: the sum of the squares of each head's weights."""
    import torch

    heads = model.config.num_attention_heads
    *reads, write = HEADS["bert"]
    total = torch.zeros(model.config.num_hidden_layers, heads)
    for end in reads:
        for i, module in enumerate(ending(model, end)):
            total[i] += module.weight.detach().square().view(heads, -1).sum(1)
    for i, module in enumerate(ending(model, write)):
        total[i] += module.weight.detach().square().sum(0).view(heads, -1).sum(1)
    return total


def slice_heads(model: Any, keep: Any) -> None:
    """Keep some heads, [layers, heads], by slicing q, k, v and the output projection."""
    import torch
    from torch import nn

    *reads, write = HEADS["bert"]
    size = model.config.hidden_size // model.config.num_attention_heads
    index = [k.repeat_interleave(size).nonzero().flatten() for k in keep]
    with torch.no_grad():
        for end in reads:
            for module, i in zip(ending(model, end), index):
                module.weight = nn.Parameter(module.weight[i])
                module.bias = nn.Parameter(module.bias[i])
                module.out_features = len(i)
        for module, i in zip(ending(model, write), index):
            module.weight = nn.Parameter(module.weight[:, i])
            module.in_features = len(i)


def best_half(scores: Any) -> Any:
    """[layers, heads]: the half of the whole model's heads that scores highest."""
    import torch

    keep = torch.zeros(scores.numel(), dtype=torch.bool)
    keep[scores.flatten().argsort(descending=True)[: scores.numel() // 2]] = True
    return keep.view_as(scores)


def by_hand(what: str) -> Callable[[Any], None]:
    import torch

    batches = calibration()

    def work(model: Any) -> None:
        if what == "gates":
            slice_heads(model, best_half(gate_gradients(model, batches)))
        elif what == "magnitude":
            slice_heads(model, best_half(squared_weights(model)))
        else:
            slice_heads(model, torch.arange(12).expand(12, 12) % 2 == 0)

    return work


# ------------------------------------------------------------------------------------------ timing

# group -> its rows: (what it says in the table, who runs it, how); the first is what others are held against
PEER, OWN = "peer", "own"
TIMINGS: dict[str, list[tuple[str, str, Callable[[], Callable[[Any], None]]]]] = {
    "score by gradients, cut": [
        ("by hand: gate gradients, slicing", OWN, lambda: by_hand("gates")),
        ("espalier: taylor, cut", OWN, lambda: espalier_scores_and_cuts("taylor")),
        ("Torch-Pruning: Taylor", PEER, lambda: peer_scores_and_cuts("GroupTaylorImportance")),
        (
            "Torch-Pruning: Taylor, weights it does not read frozen by us",
            PEER,
            lambda: peer_scores_and_cuts("GroupTaylorImportance", frozen=True),
        ),
    ],
    "score by magnitude, cut": [
        ("by hand: squared weights, slicing", OWN, lambda: by_hand("magnitude")),
        ("espalier: magnitude, cut", OWN, lambda: espalier_scores_and_cuts("magnitude")),
        (
            "Torch-Pruning: magnitude",
            PEER,
            lambda: peer_scores_and_cuts("GroupMagnitudeImportance"),
        ),
    ],
    "cut alone": [
        ("by hand: slicing", OWN, lambda: by_hand("slicing")),
        ("espalier: cut", OWN, lambda: espalier_cuts()),
    ],
    "for scale": [
        ("plain forward, no gradients", OWN, lambda: forward(calibration())),
        (
            "plain forward and backward, all weights",
            OWN,
            lambda: forward_and_backward(calibration()),
        ),
    ],
}
HEAVY = ("score by gradients, cut", "for scale")


def measure(group: str, row: int) -> dict[str, Any]:
    """Seconds of each repeat on a fresh BERT-base of random weights, and the parameters left."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig()).eval()
    forward(calibration()[:1])(model)  # the first pass of a process is slower
    work = TIMINGS[group][row][2]()
    seconds = []
    for _ in range(1 if group in HEAVY else LIGHT_REPEATS):
        fresh = copy.deepcopy(model)
        start = time.perf_counter()
        work(fresh)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "before": parameters(model), "after": parameters(fresh)}


# ------------------------------------------------------------------------------------------ processes


def make_environment() -> Path:
    """The other tool's own environment; its Python."""
    python = ENVIRONMENT / ("Scripts" if os.name == "nt" else "bin") / "python"
    ready = ENVIRONMENT / "ready"
    if not ready.exists():
        say(f"installing {', '.join(PACKAGES)} into {ENVIRONMENT.relative_to(HERE.parent)} (once)")
        subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        constraints = ["--constraint", HERE.parent / "constraints.txt"]
        subprocess.run([*pip, *constraints, *PACKAGES], check=True)
        ready.touch()
    return python


def ask(python: Path | str, case: list[str], patience: float) -> dict[str, Any]:
    """Run one case in a process of its own and read its answer."""
    alone = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HUB_OFFLINE"), "1")
    # -P: this folder must not be on the path, or this file would be imported as `torch_pruning`
    command = [str(python), "-P", str(Path(__file__).resolve()), "--case", *case]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=patience,
            env={**os.environ, **alone},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer in {patience:.0f} s"}
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        return {"error": f"ended with code {done.returncode}: {last}"}


def run_case(case: list[str]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    try:
        match case:
            case ["espalier", family]:
                return espalier_takes_half(family)
            case ["peer", what]:
                return peer_takes_half(what)
            case ["time", group, row]:
                return measure(group, int(row))
            case ["versions", *names]:
                return {name: version(name) for name in names}
            case _:
                raise ValueError(f"no case {case!r}")
    except Exception as error:
        return {"error": first_line(error)}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------ the tables


def family_results(peer: Path) -> list[tuple[str, str, dict[str, Any]]]:
    """(family, tool, answer) for every family and both tools."""
    out = []
    for family in HEADS:
        say(f"half of the heads of {family}")
        out.append((family, "espalier", ask(sys.executable, ["espalier", family], PATIENCE)))
        out.append((family, "Torch-Pruning", ask(peer, ["peer", family], PATIENCE)))
        for what in HELPED:
            if what.startswith(f"{family}, "):
                out.append((what, "Torch-Pruning", ask(peer, ["peer", what], PATIENCE)))
    return out


def removed(found: dict[str, Any]) -> bool:
    return "error" not in found and found["after"] < found["before"] and found["whole"]


def exact(found: dict[str, Any]) -> bool:
    return removed(found) and found["difference"] < 1e-5


def family_row(family: str, tool: str, found: dict[str, Any]) -> list[str]:
    if "error" in found:
        return [family, tool, f"no: {found['error']}", "–", "–", "–", "–"]
    heads = f"{found['heads before']} → {found['heads after']}"
    if not removed(found):
        how = "no, nothing, and no error" if found["whole"] else f"no whole heads, {heads}"
        return [family, tool, how, f"{found['before']:,} → {found['after']:,}", "–", "–", "–"]
    return [
        family,
        tool,
        f"yes, {heads}",
        f"{found['before']:,} → {found['after']:,}",
        f"{found['difference']:.1e}" if found["difference"] else "0",
        found["from_pretrained"],
        found["own way"],
    ]


def timing_results(peer: Path, rounds: int) -> dict[tuple[str, int], dict[str, Any]]:
    """Each row's answer with the seconds of all rounds; rounds go through all rows, so noise is shared."""
    out: dict[tuple[str, int], dict[str, Any]] = {}
    for turn in range(rounds):
        for group, rows in TIMINGS.items():
            for i, (name, side, _) in enumerate(rows):
                say(f"round {turn + 1} of {rounds}, {name}")
                python = peer if side == PEER else sys.executable
                found = ask(python, ["time", group, str(i)], LONG_PATIENCE)
                if "error" not in found:
                    found["seconds"] += out.get((group, i), {}).get("seconds", [])
                out[group, i] = found
    return out


def timing_rows(found: dict[tuple[str, int], dict[str, Any]]) -> list[list[str]]:
    rows = []
    for (group, i), answer_ in found.items():
        name = TIMINGS[group][i][0]
        if "error" in answer_:
            rows.append([group, name, answer_["error"], "–", "–", "–"])
            continue
        seconds = answer_["seconds"]
        rows.append(
            [
                group if i == 0 else "",
                name,
                f"{min(seconds):.3f}",
                f"{max(seconds):.3f}",
                f"{ratio(found, group, i):.2f}",
                f"{answer_['after']:,}",
            ]
        )
    return rows


def ratio(found: dict[tuple[str, int], dict[str, Any]], group: str, row: int) -> float:
    """Best seconds of a row over those of its group's first row; nan if either has none."""
    best = [min(found[group, i].get("seconds", [float("nan")])) for i in (row, 0)]
    return best[0] / best[1]


def sentences(families: list[Any], times: dict[tuple[str, int], dict[str, Any]]) -> list[str]:
    """What the tables say, counted from them."""
    out = []
    for tool in ("espalier", "Torch-Pruning"):
        plain = [f for name, t, f in families if t == tool and name in HEADS]
        done = list(filter(removed, plain))
        out.append(
            f"{tool} removes half of the heads of {len(done)} of {len(plain)} families, "
            f"exactly of {sum(map(exact, plain))}; `from_pretrained` reads "
            f"{sum(f['from_pretrained'] == 'yes' for f in done)} of the results, the tool's own "
            f"loading {sum(f['own way'] == 'yes' for f in done)}."
        )
    helped = [name for name, _, f in families if name in HELPED and exact(f)]
    out.append(f"Torch-Pruning, helped further, also does: {'; '.join(helped) or 'none more'}.")
    gradients, magnitude, cut = list(TIMINGS)[:3]
    for group, row, what in (
        (gradients, 1, "espalier's gradients"),
        (gradients, 2, "Torch-Pruning's gradients"),
        (gradients, 3, "Torch-Pruning's gradients with the other weights frozen"),
        (magnitude, 1, "espalier's magnitude"),
        (magnitude, 2, "Torch-Pruning's magnitude"),
        (cut, 1, "espalier's cut alone"),
    ):
        times_as_long = ratio(times, group, row)
        if times_as_long == times_as_long:
            out.append(f"{what} took {times_as_long:.2f}× as long as the code by hand.")
    return out


def header(peer: Path, rounds: int) -> list[str]:
    own = run_case(["versions", "espalier", "torch", "transformers"])
    other = ask(peer, ["versions", "torch-pruning", "torch", "transformers"], PATIENCE)
    versions = [", ".join(f"{k} {v}" for k, v in side.items()) for side in (own, other)]
    return [
        "# espalier and Torch-Pruning, half of the heads",
        f"    python benchmarks/torch_pruning.py --rounds {rounds}",
        f"Python {platform.python_version()}; {versions[0]}; in the other environment {versions[1]}. "
        f"{os.cpu_count()} cores, shared with others; one thread, one process at a time.",
    ]


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *([c.replace("|", "\\|") for c in r] for r in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 180).print(table, markup=False)


FAMILY_COLUMNS = [
    "family",
    "tool",
    "removed",
    "parameters",
    "difference",
    "`from_pretrained`",
    "own way",
]
FAMILY_NOTE = """\
Tiny random models (2 layers, 4 heads, width 128; Llama: 2 key-value heads), half of each layer's heads by
magnitude. *difference*: largest between the pruned model's output and the original's with those heads
zeroed before the output projection, found by comparing weights (for espalier also with `masked`, the larger
counts). *`from_pretrained`*: after `espalier.save` with espalier imported; after `save_pretrained` for
Torch-Pruning. *own way*: `espalier.load`; a pickle of the whole module for Torch-Pruning, its documented
way. Torch-Pruning is given the names of q, k and v, their heads, and everything else as ignored."""
TIME_COLUMNS = ["", "what", "seconds, best", "worst", "× first of group", "parameters left"]
TIME_NOTE = """\
BERT-base size, random weights, 64 sequences of 64 tokens in batches of 8; half of the 144 heads, chosen over
the whole model. Each row is a process of its own; {rounds} rounds through all rows, work of less than a
second {repeats} times in each. Imports and building the model are not counted; finding the heads, tracing,
choosing and cutting are. *× first of group*: best over best of the group's first row. The tools' scores are
not the same quantity (by gradients: espalier one gate per head and example, Torch-Pruning weight times
gradient), and random weights cannot say which choice of heads is better: this is about time only."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--case", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case:
        print(json.dumps(run_case(asked.case)))
        return
    peer = make_environment()
    head = header(peer, asked.rounds)
    families = family_results(peer)
    rows = [family_row(*result) for result in families]
    show("half of the heads, eight families", FAMILY_COLUMNS, rows)
    times = timing_results(peer, asked.rounds)
    time_rows = timing_rows(times)
    show("BERT-base: score and cut", TIME_COLUMNS, time_rows)
    said = sentences(families, times)
    print("\n".join(said))
    parts = [
        *head,
        "## Which models",
        markdown(FAMILY_COLUMNS, rows),
        FAMILY_NOTE,
        "## How long",
        markdown(TIME_COLUMNS, time_rows),
        TIME_NOTE.format(rounds=asked.rounds, repeats=LIGHT_REPEATS),
        "## What they say",
        "\n".join(f"- {sentence}" for sentence in said),
    ]
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    say(f"written to {RESULT.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
