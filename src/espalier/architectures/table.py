"""Where the removable units live.

An architecture is a table, one per family of architectures: where the blocks are, which weights read a unit and
which one writes it back, each with its layout. A site is such a place in a living model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from torch import nn

from ..core.errors import EspalierError, suggest
from ..io import plugin
from .layout import formula
from .site import Site, WeightSite, has

TARGETS = ("heads", "neurons", "weights")
CROSSING = ("k", "v", "kv")  # roles of cross-attention that read what the encoder wrote


@dataclass(frozen=True)
class At:
    """One weight: the path of its module inside the block, and its layout. `path?` may be absent."""

    path: str
    layout: str


@dataclass(frozen=True)
class Part:
    """One kind of unit in a block: the weights that read it, the one that writes it back, what follows."""

    name: str
    target: str
    places: Mapping[str, At]  # role -> weight; the role "write" is the one that writes back
    module: str = ""  # heads: the module that attends
    sizes: Mapping[str, str] = field(default_factory=dict)  # letter -> attribute of that module
    sync: Mapping[str, str] = field(default_factory=dict)  # attribute of that module -> formula
    tail: str = ""  # what that module does after the heads, see skeleton.Headless
    follow: str = ""  # an argument of that module with one slice per unpruned head
    shared: bool = False  # that argument is made by one layer and handed on by every other
    config: Mapping[str, str] = field(default_factory=dict)  # config entry -> formula, if it can say it
    optional: bool = False
    uncuttable: str = ""


Place = str | tuple[str, str]


def heads(
    *,
    at: str,
    d: str,
    out: Place,
    g: str = "",
    name: str = "heads",
    sync: Mapping[str, str] | None = None,
    tail: str | None = None,
    follow: str = "",
    shared: bool = False,
    config: Mapping[str, str] | None = None,
    optional: bool = False,
    uncuttable: str = "",
    **reads: Place,
) -> Part:
    """Attention heads. `at` is the module that attends; paths that begin with a dot start there."""

    def place(value: Place, layout: str) -> At:
        path, layout = (value, layout) if isinstance(value, str) else value
        return At(at + path if path.startswith(".") else path, layout)

    q, write = ("(u g d) m", "m (u g d)") if g else ("(u d) m", "m (u d)")
    places = {role: place(p, q if role == "q" else "(u d) m") for role, p in reads.items()}
    places["write"] = place(out, write)
    path = places["write"].path
    if tail is None:  # most attentions end with their output projection, or leave it to a module outside
        tail = path.removeprefix(f"{at}.") if path.startswith(f"{at}.") else ""
    return Part(
        name=name,
        target="heads",
        places=places,
        module=at,
        sizes={"d": d, "g": g} if g else {"d": d},
        sync=sync or {},
        tail=tail,
        follow=follow,
        shared=shared,
        config=config or {},
        optional=optional,
        uncuttable=uncuttable,
    )


def neurons(*, down: Place, config: str = "", optional: bool = False, **reads: Place) -> Part:
    """Neurons of a feed-forward network."""
    places = {r: At(p, "u m") if isinstance(p, str) else At(*p) for r, p in reads.items()}
    places["write"] = At(down, "m u") if isinstance(down, str) else At(*down)
    return Part(
        name="neurons",
        target="neurons",
        places=places,
        config={config: "u"} if config else {},
        optional=optional,
    )


@dataclass(frozen=True)
class Architecture:
    """A family of architectures: where its blocks are, which parts each has, and how to make a tiny one."""

    models: tuple[str, ...]
    layers: str | tuple[str, ...]
    parts: tuple[Part, ...]
    uses: str = "1"  # formula over the config: how often each block runs in one pass
    tail: str = ""  # the module of a block after which tokens no longer meet, if it is given all it needs
    # model type -> what the config of a small random model of it needs
    tiny: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)  # model type -> what a user should know

    @property
    def stacks(self) -> tuple[str, ...]:
        return (self.layers,) if isinstance(self.layers, str) else self.layers


# ------------------------------------------------------------------------------------------ finding


@cache
def architectures() -> dict[str, Architecture]:
    """Every known model type and its table: the files in `architectures`, and what was learnt since."""
    from . import families as drawer

    known: dict[str, Architecture] = {}
    for info in sorted(iter_modules(drawer.__path__), key=lambda info: info.name):
        table: Architecture = import_module(f"{drawer.__name__}.{info.name}").ARCHITECTURE
        known.update(dict.fromkeys(table.models, table))
    return known


def learn(architecture: Architecture) -> Architecture:
    """Make a table of your own known to this process."""
    architectures().update(dict.fromkeys(architecture.models, architecture))
    return architecture


def load_table(file: str) -> Architecture:
    """The `ARCHITECTURE` of a Python file of your own."""
    table = getattr(plugin.run(file), "ARCHITECTURE", None)
    if not isinstance(table, Architecture):
        raise EspalierError(f"{file} defines no ARCHITECTURE = Architecture(...)")
    return table


def architecture_of(model: nn.Module) -> Architecture:
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if not isinstance(kind, str):
        raise EspalierError(
            f"{type(model).__name__} is not a transformers model: it has no config.model_type"
        )
    known = architectures()
    if kind not in known:
        raise EspalierError(
            f"no architecture for model_type {kind!r}{suggest(kind, known)} Known: {', '.join(sorted(known))}.\n"
            f"Let espalier propose one: espalier look {kind} --guess; then see docs/add-an-architecture.md"
        )
    return known[kind]


def blocks(model: Any, architecture: Architecture) -> Iterator[tuple[str, nn.Module]]:
    """(path from the base model, block), in forward order."""
    pattern = "|".join(re.escape(stack) + r"\.\d+" for stack in architecture.stacks)
    pattern = pattern.replace(r"\*", r"\d+")
    for path, block in model.base_model.named_modules():
        if re.fullmatch(pattern, path):
            yield path, block


OUTSIDE = ("embeddings", "head", "norms")  # what can be pruned weight by weight beside the blocks


def check_target(kind: str) -> str:
    """A kind of unit that there is."""
    if kind not in TARGETS:
        raise EspalierError(
            f"no kind of unit {kind!r}{suggest(kind, TARGETS)} There are: {', '.join(TARGETS)}"
        )
    return kind


def in_order(words: Iterable[str]) -> tuple[str, ...]:
    """Those of `OUTSIDE` that are named, each once, whatever the order they were named in."""
    named = set(words)
    return tuple(word for word in OUTSIDE if word in named)


def sites(
    model: Any, *kinds: str, embeddings: bool = False, head: bool = False, norms: bool = False
) -> list[Any]:
    """Every place in the model where units can be removed, in forward order.

    >>> sites(model, "heads")
    [Site('encoder.layer.0/heads', units=12), ...]

    Without kinds: heads and neurons. "weights" gives the matrices of both, unit = one weight; with them, if
    asked for, those of the embeddings, of the head (every linear layer outside the blocks) and of the norms.
    """
    for kind in kinds:
        check_target(kind)
    if (embeddings or head or norms) and "weights" not in kinds:
        raise EspalierError(
            "embeddings, head and norms are scored weight by weight: sites(model, 'weights', embeddings=True)"
        )
    architecture = architecture_of(model)
    found: list[Any] = []
    entries = re.findall(r"[a-z]\w*", architecture.uses)
    uses = formula(architecture.uses, {name: getattr(model.config, name) for name in entries})
    for path, block in blocks(model, architecture):
        for part in _parts(model, architecture, path, block):
            site = Site(path, part, block, uses=uses)
            if part.target in (kinds or ("heads", "neurons")):
                found.append(site)
            if "weights" in kinds:
                found += [
                    WeightSite(
                        f"{path}/{at.path.rstrip('?')}",
                        site.module(role),
                        at.layout,
                        "encoder" if part.name == "cross_heads" and role in CROSSING else "hidden",
                    )
                    for role, at in site.places.items()
                ]
    if not found:
        raise EspalierError(
            f"{type(model).__name__} ({model.config.model_type}): no block at {' or '.join(architecture.stacks)}"
        )
    if embeddings or head or norms:
        more = _outside(model, architecture)
        found = [
            *(more["embeddings"] if embeddings else ()),
            *found,
            *(more["norms"] if norms else ()),
            *(more["head"] if head else ()),
        ]
    return found


def _outside(model: Any, architecture: Architecture) -> dict[str, list[WeightSite]]:
    """The matrices that belong to no unit. One that is shared, as a tied output layer is, comes once."""
    base = {id(module): path for path, module in model.base_model.named_modules()}
    inside = {id(m) for _, block in blocks(model, architecture) for m in block.modules()}
    out: dict[str, list[WeightSite]] = {"embeddings": [], "norms": [], "head": []}
    seen: set[int] = set()
    modules = [(path, m) for path, m in model.named_modules() if "weight" in m._parameters]
    # Embeddings first: a matrix that looks up and writes is theirs.
    for path, module in sorted(modules, key=lambda item: not isinstance(item[1], nn.Embedding)):
        weight = module._parameters["weight"]
        if weight is None or id(weight) in seen:
            continue
        seen.add(id(weight))
        parent, _, last = base.get(id(module), path).rpartition(".")
        name = f"{parent}/{last}" if parent else last
        if "norm" in type(module).__name__.lower() and weight.dim() == 1:
            out["norms"].append(WeightSite(name, module, "m", "channels"))
        elif id(module) in inside:
            continue
        elif isinstance(module, nn.Embedding):
            out["embeddings"].append(WeightSite(name, module, "v m", "ids"))
        elif isinstance(module, nn.Linear) or hasattr(module, "nf"):
            layout = "m o" if hasattr(module, "nf") else "o m"
            out["head"].append(WeightSite(name, module, layout))
    return out


def _parts(model: Any, architecture: Architecture, path: str, block: nn.Module) -> list[Part]:
    missing, found = [], []
    for part in architecture.parts:
        if has(block, part.places["write"].path):
            absent = [
                a.path for a in part.places.values() if not a.path.endswith("?") and not has(block, a.path)
            ]
            if absent:
                missing.append(absent[0])
                continue
            found.append(part)
        elif not part.optional:
            missing.append(part.places["write"].path)
    if missing or {part.target for part in found} != {part.target for part in architecture.parts}:
        raise EspalierError(
            f"{model.config.model_type}: {path} has no {', '.join(missing) or 'known part'} "
            f"(it has: {', '.join(n for n, _ in block.named_modules() if n)}). Did transformers rename it?"
        )
    return found
