"""Propose an anatomy for an architecture nobody has written down, from the names and shapes of its weights.

A guess is a start, not an answer: it lists what it could not find out, and the contract decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

ROLES = {
    "q": r"(to_?|w|lin_?)?q(uery)?(_?(proj|lin|attn|layer))?",
    "k": r"(to_?|w|lin_?)?k(ey)?(_?(proj|lin|layer))?",
    "v": r"(to_?|w|lin_?)?v(alue)?(_?(proj|lin|layer))?",
    "qkv": r"(to_?|w|lin_?)?(qkv|query_key_value|c_attn|in_proj)(_?proj)?",
}
HEAD_SIZES = (
    "head_dim",
    "attention_head_size",
    "head_size",
    "key_value_proj_dim",
    "dim_head",
    "d_head",
)
GROUPS = ("num_key_value_groups", "num_kv_groups")
COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_attn_heads")
KEY_VALUE_COUNTS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
SMALL = {"num_key_value_heads": 3, "head_dim": 8}
WIDTHS = ("all_head_size", "inner_dim", "split_size")


@dataclass
class Guess:
    """A proposed table as Python source, and what it could not find out."""

    model_type: str
    layers: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    tiny: dict[str, int] = field(default_factory=dict)

    def source(self) -> str:
        layers = repr(self.layers[0]) if len(self.layers) == 1 else repr(tuple(self.layers))
        body = "".join(f"        {part},\n" for part in self.parts)
        return (
            f'"""{self.model_type}."""\n\n'
            "from espalier import Anatomy, heads, neurons\n\n"
            "ANATOMY = Anatomy(\n"
            f"    models=({self.model_type!r},),\n"
            f"    layers={layers},\n"
            f"    parts=(\n{body}    ),\n"
            f"    tiny={{{self.model_type!r}: {self.tiny!r}}},  # what a small random config of it needs\n"
            ")\n"
        )


def guess(model: Any) -> Guess:
    """Look at one block of every stack. Works on the meta device; nothing runs."""
    found = Guess(model.config.model_type)
    found.tiny = {n: v for n, v in SMALL.items() if getattr(model.config, n, None) is not None}
    stacks = list(_stacks(model.base_model))
    if not stacks:
        found.unknown.append("no list of equal blocks with linear layers in them")
        return found
    for path, block in stacks:
        found.layers.append(path)
        for part in _parts_of(block, found.unknown, path):
            if part not in found.parts:
                found.parts.append(part)
    kinds = {part.partition("(")[0] for part in found.parts}
    for kind in ("heads", "neurons"):
        if kind not in kinds:
            found.unknown.append(f"where the {kind} are")
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


def _linears(block: nn.Module) -> dict[str, tuple[int, int, bool]]:
    """path -> (inputs, outputs, transposed)"""
    found = {}
    for path, module in block.named_modules():
        if isinstance(module, nn.Linear):
            found[path] = (module.in_features, module.out_features, False)
        elif hasattr(module, "nf") and getattr(module, "weight", None) is not None:
            found[path] = (int(module.weight.shape[0]), int(module.weight.shape[1]), True)
    return found


def _parts_of(block: nn.Module, unknown: list[str], where: str) -> Iterator[str]:
    linears = _linears(block)
    used: set[str] = set()
    owners = list(dict.fromkeys(path.rpartition(".")[0] for path in linears))
    for owner in owners:
        roles = {
            role: path
            for path in linears
            if path.rpartition(".")[0] == owner
            for role, pattern in ROLES.items()
            if re.fullmatch(pattern, path.rpartition(".")[2].lower())
        }
        if "qkv" in roles:
            roles = {"qkv": roles["qkv"]}
        elif not {"q", "k", "v"} <= set(roles):
            continue
        used |= set(roles.values())
        part, out = _heads(block, owner, roles, linears, used, unknown, where)
        if out:
            used.add(out)
            yield part
    rest = {path: size for path, size in linears.items() if path not in used}
    yield from _neurons(rest, unknown, where)


def _heads(
    block: nn.Module,
    owner: str,
    roles: dict[str, str],
    linears: dict[str, tuple[int, int, bool]],
    used: set[str],
    unknown: list[str],
    where: str,
) -> tuple[str, str]:
    attention: Any = block.get_submodule(owner)
    d = _attribute(attention, HEAD_SIZES)
    if not d:
        unknown.append(f"{where}: which attribute of {owner} is the size of a head (d)")
    size = int(getattr(attention, d)) if d else 1
    if "qkv" in roles:
        inputs, fused, transposed = linears[roles["qkv"]]
        width, groups = fused // 3, 1
        layout = "m ([q k v] u d)" if transposed else "([q k v] u d) m"
        unknown.append(
            f"{where}: whether {roles['qkv']} is ([q k v] u d), stacked, or (u [q k v] d), interleaved"
        )
        places = {"qkv": f'(".{roles["qkv"].rpartition(".")[2]}", "{layout}")'}
    else:
        inputs, width, transposed = linears[roles["q"]]
        groups = width // max(1, linears[roles["k"]][1])
        q = "m (u d)" if transposed else ""
        places = {
            r: f'(".{p.rpartition(".")[2]}", "{q}")' if transposed else f'".{p.rpartition(".")[2]}"'
            for r, p in roles.items()
        }
    near = owner.rpartition(".")[0]
    free = [
        p
        for p, (i, o, _) in linears.items()
        if p not in used
        and i == width
        and o == inputs
        and (not near or p.startswith((near, owner)))
    ]
    inside = [p for p in free if p.startswith(owner + ".")]
    out = next(iter(inside or free), "")
    if not out:
        unknown.append(f"{where}: which layer writes the heads of {owner} back")
        return "", ""
    path = f'".{out.removeprefix(owner + ".")}"' if inside else f'"{out}"'
    if linears[out][2]:
        path = f'({path}, "(u d) m")'
    heads = width // size
    g = _attribute(attention, GROUPS)
    sync = {
        n: "u*g" if groups > 1 or g else "u" for n in COUNTS if getattr(attention, n, None) == heads
    }
    sync |= {n: "u" for n in KEY_VALUE_COUNTS if getattr(attention, n, None) == heads // groups}
    sync |= {n: "u*d" for n in WIDTHS if getattr(attention, n, None) == width and groups == 1}
    more = f", sync={sync!r}".replace("'", '"') if sync else ""
    if g:
        more = f', g="{g}"' + more
    elif groups > 1:
        unknown.append(
            f"{where}: which attribute of {owner} is the number of query heads per group (g)"
        )
    cross = re.search(r"cross|encoder_attn|encdec", owner.lower())
    more += ', name="cross_heads", optional=True' if cross else ""
    reads = ", ".join(f"{role}={place}" for role, place in places.items())
    extra = [
        n
        for n, m in attention.named_modules()
        if "norm" in n.lower() and getattr(m, "weight", None) is not None
    ]
    wide = [n for n in extra if int(attention.get_submodule(n).weight.numel()) > size]
    if wide:
        unknown.append(
            f"{where}: {owner}.{wide[0]} spans several heads, so they may not be separable"
        )
    others = [n for n, p in attention.named_parameters(recurse=False)]
    others += [n for n, m in attention.named_modules() if isinstance(m, nn.Embedding)]
    if others:
        unknown.append(f"{where}: whether {owner}.{others[0]} holds something for each head")
    return f'heads(at="{owner}", d="{d}", {reads}, out={path}{more})', out


def _neurons(
    rest: dict[str, tuple[int, int, bool]], unknown: list[str], where: str
) -> Iterator[str]:
    for down, (inputs, outputs, transposed) in rest.items():
        ups = [
            p
            for p, (i, o, _) in rest.items()
            if p != down and i == outputs and o in (inputs, 2 * inputs)
        ]
        home = down.rpartition(".")[0]
        near = [p for p in ups if p.rpartition(".")[0] == home] or ups
        before = [p for p in near if list(rest).index(p) < list(rest).index(down)]
        if not before or inputs == outputs:
            continue
        reads = []
        for i, path in enumerate(before):
            name = (
                "gate"
                if "gate" in path.lower() and len(before) > 1
                else "up"
                if i < 2
                else f"up{i}"
            )
            layout = "([gate up] u)" if rest[path][1] == 2 * inputs else "u"
            if layout != "u":
                unknown.append(f"{where}: whether {path} stacks gate and up, ([gate up] u)")
            if transposed:
                reads.append(f'{name}=("{path}", "m {layout}")')
            else:
                reads.append(
                    f'{name}="{path}"' if layout == "u" else f'{name}=("{path}", "{layout} m")'
                )
        write = f'("{down}", "u m")' if transposed else f'"{down}"'
        yield f"neurons({', '.join(reads)}, down={write})"
        return


def _attribute(module: Any, names: tuple[str, ...]) -> str:
    return next((n for n in names if isinstance(getattr(module, n, None), int)), "")
