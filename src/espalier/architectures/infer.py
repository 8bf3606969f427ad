"""Infer a table for an unknown architecture, from the names and shapes of its weights.

A proposal is a starting point: it lists what could not be inferred, and `espalier.testing.architecture`
checks it.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn

from ..core.types import PreTrainedModel

ROLES = {
    "q": r"(to_?|w|lin_?)?q(uery)?(_?(proj|lin|attn|layer))?",
    "k": r"(to_?|w|lin_?)?k(ey)?(_?(proj|lin|layer))?",
    "v": r"(to_?|w|lin_?)?v(alue)?(_?(proj|lin|layer))?",
    "qkv": r"(to_?|w|lin_?)?(qkv|query_key_value|c_attn|in_proj)(_?proj)?",
}
HEAD_SIZES = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim", "dim_head", "d_head")
GROUPS = ("num_key_value_groups", "num_kv_groups")
COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_attn_heads")
KEY_VALUE_COUNTS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
SMALL = {"num_key_value_heads": 3, "head_dim": 8}
WIDTHS = ("all_head_size", "inner_dim", "split_size")
# norms of a block that only one sublayer reads, as blocks with norms before their sublayers call them
BEFORE_ATTENTION = (
    r"(input|pre_?attention|attention|self_attn|attn)_?(layer_?)?norm|ln_?1|norm_?1|layernorm_before"
)
BEFORE_NETWORK = (
    r"(post_attention|pre_?feedforward|ffn|mlp|final)_?(layer_?)?norm|ln_?2|norm_?2|layernorm_after"
)


class Linear(NamedTuple):
    """A linear layer of a block, by its path and shape."""

    path: str
    inputs: int
    outputs: int
    transposed: bool

    @property
    def owner(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass
class Proposal:
    """A proposed table as Python source, and what could not be inferred."""

    model_type: str
    layers: list[str] = field(default_factory=list)
    specs: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    tiny: dict[str, int] = field(default_factory=dict)
    masks: dict[str, str] = field(default_factory=dict)

    def source(self) -> str:
        """Return the table as a Python file."""
        layers = repr(self.layers[0]) if len(self.layers) == 1 else repr(tuple(self.layers))
        body = "".join(f"        {spec},\n" for spec in self.specs)
        masks = f"    masks={self.masks!r},\n" if self.masks else ""
        return (
            f'"""{self.model_type}."""\n\n'
            "from espalier import Architecture, HeadSpec, NeuronSpec\n\n"
            "ARCHITECTURE = Architecture(\n"
            f"    models=({self.model_type!r},),\n"
            f"    layers={layers},\n{masks}"
            f"    specs=(\n{body}    ),\n"
            f"    tiny={{{self.model_type!r}: {self.tiny!r}}},  # what a small random config of it needs\n"
            ")\n"
        )


def infer_table(model: PreTrainedModel) -> Proposal:
    """Return a proposal from one block of every stack. Works on the meta device; nothing runs."""
    found = Proposal(model.config.model_type)
    settings = model.config.to_dict()  # entries that are only computed cannot be set
    found.tiny = {n: v for n, v in SMALL.items() if settings.get(n) is not None}
    for path, block in _stacks(model.base_model):
        found.layers.append(path)
        found.specs += [spec for spec in _Block(path, block, found).specs() if spec not in found.specs]
        if getattr(model.config, "is_encoder_decoder", False) and path.startswith("decoder"):
            found.masks["decoder"] = "decoder_attention_mask"
    if not found.layers:
        found.unknown.append("no list of equal blocks with linear layers in them")
        return found
    inferred = {spec.partition("(")[0] for spec in found.specs}
    kinds = {"HeadSpec": "where the heads are", "NeuronSpec": "where the neurons are"}
    found.unknown += [question for kind, question in kinds.items() if kind not in inferred]
    found.unknown = list(dict.fromkeys(found.unknown))
    return found


def _stacks(base: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    seen: list[str] = []
    for path, module in base.named_modules():
        if not isinstance(module, nn.ModuleList) or not len(module) or path.startswith(tuple(seen)):
            continue
        if len(_linears(module[0])) >= 3 and len({type(block) for block in module}) == 1:
            seen.append(path + ".")
            yield path, module[0]


def _linears(block: nn.Module) -> list[Linear]:
    found = []
    for path, module in block.named_modules():
        if isinstance(module, nn.Linear):
            found.append(Linear(path, module.in_features, module.out_features, False))
        elif hasattr(module, "nf") and getattr(module, "weight", None) is not None:
            inputs, outputs = module.weight.shape
            found.append(Linear(path, inputs, outputs, True))
    return found


class _Block:
    """One block of a stack: the specs inferred from it; what they leave open is added to the proposal."""

    def __init__(self, stack: str, block: nn.Module, proposal: Proposal):
        self.stack, self.block, self.proposal = stack, block, proposal
        self.free = _linears(block)  # those that no spec has yet

    def ask(self, question: str) -> None:
        self.proposal.unknown.append(f"{self.stack}: {question}")

    def specs(self) -> Iterator[str]:
        for owner in dict.fromkeys(linear.owner for linear in self.free):
            reads = _reads(linear for linear in self.free if linear.owner == owner)
            if not reads:
                continue
            self.free = [linear for linear in self.free if linear not in reads.values()]
            first = next(iter(reads.values()))
            width = first.outputs // 3 if "qkv" in reads else first.outputs
            out = _writer(self.free, owner, width, first.inputs)
            if out is None:
                self.ask(f"which layer writes the heads of {owner} back")
                continue
            self.free.remove(out)
            yield self.heads(owner, reads, out, width)
        yield from self.neurons()

    def heads(self, owner: str, reads: dict[str, Linear], out: Linear, width: int) -> str:
        attention = self.block.get_submodule(owner)
        d, g = _attribute(attention, HEAD_SIZES), _attribute(attention, GROUPS)
        size = int(getattr(attention, d)) if d else 1
        groups = 1 if "qkv" in reads else width // max(1, reads["k"].outputs)
        if not d:
            self.ask(f"which attribute of {owner} is the size of a head (d)")
        if groups > 1 and not g:
            self.ask(f"which attribute of {owner} is the number of heads per group (g)")
        entries = [f'at="{owner}"', f'd="{d}"', *([f'g="{g}"'] if g else [])]
        for role, linear in reads.items():
            layout = "m (u d)" if linear.transposed else ""
            if role == "qkv":
                layout = "m ([q k v] u d)" if linear.transposed else "([q k v] u d) m"
                self.ask(f"whether {linear.path} is ([q k v] u d), stacked, or (u [q k v] d), interleaved")
            entries.append(f"{role}={_place('.' + linear.name, layout)}")
        path = "." + out.path.removeprefix(owner + ".") if out.path.startswith(owner + ".") else out.path
        entries.append(f"out={_place(path, '(u d) m' if out.transposed else '')}")
        if sync := _sync(attention, width, size, groups, grouped=bool(g)):
            entries.append("sync={" + ", ".join(f'"{k}": "{v}"' for k, v in sync.items()) + "}")
        if re.search(r"cross|encoder_attn|encdec", owner.lower()):
            entries += ['name="cross_heads"', "optional=True"]
        else:
            entries += self.private(BEFORE_ATTENTION)
        self.ask_unexplained(owner, attention, size)
        return f"HeadSpec({', '.join(entries)})"

    def private(self, pattern: str) -> list[str]:
        """Return the norm before a sublayer, which goes with it."""
        found = [name for name, _ in self.block.named_children() if re.fullmatch(pattern, name.lower())]
        return [f'private=("{found[0]}",)'] if len(found) == 1 else []

    def ask_unexplained(self, owner: str, attention: nn.Module, size: int) -> None:
        """Ask about what is in an attention and is not explained by names and shapes."""
        for name, module in attention.named_modules():
            weight: Any = getattr(module, "weight", None)
            if "norm" in name.lower() and weight is not None and weight.numel() > size:
                self.ask(f"{owner}.{name} spans several heads; they may be inseparable")
            if isinstance(module, nn.Embedding):
                self.ask(f"whether {owner}.{name} holds something for each head")
        for name, _ in attention.named_parameters(recurse=False):
            self.ask(f"whether {owner}.{name} holds something for each head")

    def neurons(self) -> Iterator[str]:
        """Yield the first layer that leads back to the width of others before it."""
        for position, down in enumerate(self.free):
            widths = (down.inputs, 2 * down.inputs)
            ups = [n for n in self.free[:position] if n.inputs == down.outputs and n.outputs in widths]
            ups = [n for n in ups if n.owner == down.owner] or ups
            if not ups or down.inputs == down.outputs:
                continue
            entries = []
            for number, up in enumerate(ups):
                gate = "gate" in up.name.lower() and len(ups) > 1
                role = "gate" if gate else "up" if number < 2 else f"up{number}"
                layout = "m u" if up.transposed else ""
                if up.outputs == 2 * down.inputs:
                    layout = "m ([gate up] u)" if up.transposed else "([gate up] u) m"
                    self.ask(f"whether {up.path} stacks gate and up, {layout}")
                entries.append(f"{role}={_place(up.path, layout)}")
            entries.append(f"down={_place(down.path, 'u m' if down.transposed else '')}")
            entries += self.private(BEFORE_NETWORK)
            yield f"NeuronSpec({', '.join(entries)})"
            return


def _reads(linears: Iterable[Linear]) -> dict[str, Linear]:
    """Return {"q": …, "k": …, "v": …} or {"qkv": …} among the layers of one module, by their names."""
    found = {
        role: linear
        for linear in linears
        for role, pattern in ROLES.items()
        if re.fullmatch(pattern, linear.name.lower())
    }
    if "qkv" in found:
        return {"qkv": found["qkv"]}
    return {role: found[role] for role in "qkv"} if {"q", "k", "v"} <= set(found) else {}


def _writer(free: list[Linear], owner: str, width: int, outputs: int) -> Linear | None:
    """Return the layer of the right shape in the module that attends, or else near it."""
    fits = [n for n in free if (n.inputs, n.outputs) == (width, outputs)]
    fits = [n for n in fits if not re.match(r"(q|k|v|query|key|value)(_|$)", n.name.lower())]
    inside = [n for n in fits if n.path.startswith(owner + ".")]
    near = [n for n in fits if n.path.startswith(owner.rpartition(".")[0])]
    return next(iter(inside or near), None)


def _sync(attention: nn.Module, width: int, size: int, groups: int, *, grouped: bool) -> dict[str, str]:
    """Return the attributes that hold the number of heads, or their width together."""
    values = {n: getattr(attention, n, None) for n in (*COUNTS, *KEY_VALUE_COUNTS, *WIDTHS)}
    heads = width // size
    sync = {n: "u*g" if grouped else "u" for n in COUNTS if values[n] == heads}
    sync |= {n: "u" for n in KEY_VALUE_COUNTS if values[n] == heads // groups}
    return sync | {n: "u*d" for n in WIDTHS if values[n] == width and not grouped}


def _place(path: str, layout: str) -> str:
    """Return a place as it is written in a table; the usual layout is left out."""
    return f'("{path}", "{layout}")' if layout else f'"{path}"'


def _attribute(module: nn.Module, names: tuple[str, ...]) -> str:
    return next((n for n in names if isinstance(getattr(module, n, None), int)), "")
