"""What an architecture table is: where the blocks of a family of models are, and the units in a block.

`HeadSpec` and `NeuronSpec` list the weights that read a unit and the one that writes it back, each with its
layout. The tables are in families/, one file per family; others are registered by the user. A layout says how
units are arranged in a weight, in a notation in which `u` is the unit:

(u d) m                      unit by unit, d channels each, by the model width
(u g d) m                    each unit is a key-value group of g query heads
m ([q k v] u d)              transposed, q, k and v stacked
(u [q k v] d) m              q, k and v interleaved, head by head
(q: u g d + k: u d + v: u d) m      q, k and v of different sizes, one after the other
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal, NamedTuple

from ..core.errors import FormatError, UnknownNameError, UnsupportedError
from ..core.types import PreTrainedModel
from ..io import plugin
from . import families

UnitTarget = Literal["heads", "neurons", "slots"]
PlaceLike = str | tuple[str, str]  # a path, or a path and a layout


class Place(NamedTuple):
    """One weight: the path of its module inside the block, and its layout. `path?` may be absent."""

    path: str
    layout: str

    @property
    def module(self) -> str:
        """The path without its question mark."""
        return self.path.rstrip("?")


@dataclass(frozen=True)
class UnitSpec:
    """The units of one kind in a block: the weights that read them and the one that writes them back."""

    name: str
    target: UnitTarget
    places: Mapping[str, Place]  # role -> weight; the role "write" is the one that writes back
    module: str = ""  # heads: the module that attends
    sizes: Mapping[str, str] = field(default_factory=dict)  # letter -> attribute of that module
    sync: Mapping[str, str] = field(default_factory=dict)  # attribute of that module -> formula
    tail: str = ""  # what that module does after the heads, see skeleton.Headless
    follow: str = ""  # an argument of that module with one slice per unpruned head
    shared: bool = False  # that argument is computed by one layer and passed on by every other
    config: Mapping[str, str] = field(default_factory=dict)  # config entry -> formula, where one exists
    optional: bool = False
    uncuttable: str = ""  # why these units can be gated but not cut
    products: int = 2  # heads: with every key, of size d; scores and values, and more for relative positions
    vectors: tuple[str, ...] = ()  # roles whose weight is not applied to hidden states
    # modules of the block that only this sublayer uses, such as the norm before it; they go with the whole
    # of it. `path if entry` holds where that entry of the config is true, `+path` follows the sublayer
    private: tuple[str, ...] = ()


class HeadSpec(UnitSpec):
    """Attention heads. `at` is the module that attends; paths that begin with a dot start there.

    `d` is the attribute that holds the size of a head, `g` that of the query heads per unit. `reads` are the
    weights that read a head; by default q, k and v are `.q_proj`, `.k_proj`, `.v_proj`.
    """

    def __init__(
        self,
        *,
        at: str,
        out: PlaceLike,
        d: str = "head_dim",
        g: str = "",
        name: str = "heads",
        sync: Mapping[str, str] | None = None,
        tail: str | None = None,
        follow: str = "",
        shared: bool = False,
        config: Mapping[str, str] | None = None,
        optional: bool = False,
        uncuttable: str = "",
        products: int = 2,
        vectors: tuple[str, ...] = (),
        private: tuple[str, ...] = (),
        **reads: PlaceLike,
    ):
        def place(given: PlaceLike, layout: str) -> Place:
            path, layout = (given, layout) if isinstance(given, str) else given
            return Place(at + path if path.startswith(".") else path, layout)

        q, write = ("(u g d) m", "m (u g d)") if g else ("(u d) m", "m (u d)")
        reads = reads or {role: f".{role}_proj" for role in "qkv"}
        places = {role: place(p, q if role == "q" else "(u d) m") for role, p in reads.items()}
        places["write"] = place(out, write)
        path = places["write"].path
        if tail is None:  # most attentions end with their output projection, or leave it to a module outside
            tail = path.removeprefix(f"{at}.") if path.startswith(f"{at}.") else ""
        sizes, sync, config = {"d": d, "g": g} if g else {"d": d}, sync or {}, config or {}
        super().__init__(
            *(name, "heads", places, at, sizes, sync, tail, follow, shared, config, optional, uncuttable),
            products=products,
            vectors=vectors,
            private=private,
        )


class NeuronSpec(UnitSpec):
    """Neurons of a feed-forward network. `config` is the config entry that holds their number."""

    def __init__(
        self,
        *,
        down: PlaceLike,
        config: str = "",
        optional: bool = False,
        private: tuple[str, ...] = (),
        **reads: PlaceLike,
    ):
        places = {r: Place(p, "u m") if isinstance(p, str) else Place(*p) for r, p in reads.items()}
        places["write"] = Place(down, "m u") if isinstance(down, str) else Place(*down)
        counted = {config: "u"} if config else {}
        super().__init__("neurons", "neurons", places, config=counted, optional=optional, private=private)


class SlotSpec(UnitSpec):
    """Persistent vectors that every head attends to, [channels, slots]: their keys and their values.

    The values are called with how open each slot is, so that a gate acts before the softmax.
    """

    def __init__(self, *, keys: str, values: str):
        places = {"k": Place(keys, "m u"), "write": Place(values, "m u")}
        super().__init__("slots", "slots", places, vectors=("k", "write"))


@dataclass(frozen=True)
class Architecture:
    """A family of models: where its blocks are, the units of each, and how to make a tiny one."""

    models: tuple[str, ...]
    layers: str | tuple[str, ...]
    specs: tuple[UnitSpec, ...]
    uses: str = "1"  # formula over the config: how often each block runs in one pass
    tokenwise_from: str = ""  # the module of a block from which on every token is computed by itself
    # model types, also of towers, whose tokens read no later ones, though `is_causal` is not set in them
    causal: tuple[str, ...] = ()
    drops_tokens: tuple[str, ...] = ()  # model types whose layers can be given fewer tokens, see tokens/
    # first part of a path -> the mask of the tokens that its modules read, if not the model's own
    # attention mask: "decoder_attention_mask", or "" for none
    masks: Mapping[str, str] = field(default_factory=dict)
    # model type -> formula over the config: rows of the position table before the first token's
    position_offset: Mapping[str, str] = field(default_factory=dict)
    # model type -> what the config of a small random model of it needs
    tiny: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)  # model type -> what a user should know
    # path of a list of blocks -> the config entry that counts them, if not num_hidden_layers
    counts: Mapping[str, str] = field(default_factory=dict)
    # model type or config entry that is true -> why its blocks cannot be removed
    fixed: Mapping[str, str] = field(default_factory=dict)
    # modules of the first block that the next one takes over if it is removed
    inherited: tuple[str, ...] = ()
    # module that the first block lacks and the others have -> one of the model that is made the same way
    lacking: Mapping[str, str] = field(default_factory=dict)

    @property
    def stacks(self) -> tuple[str, ...]:
        """The paths of the lists of blocks."""
        return (self.layers,) if isinstance(self.layers, str) else self.layers


@cache
def architectures() -> dict[str, Architecture]:
    """Return every known model type and its table."""
    known: dict[str, Architecture] = {}
    for info in sorted(iter_modules(families.__path__), key=lambda info: info.name):
        table: Architecture = import_module(f"{families.__name__}.{info.name}").ARCHITECTURE
        known.update(dict.fromkeys(table.models, table))
    return known


def register_architecture(architecture: Architecture) -> Architecture:
    """Add a table to those that this process knows, and return it."""
    architectures().update(dict.fromkeys(architecture.models, architecture))
    return architecture


def load_table(file: str) -> Architecture:
    """Return the `ARCHITECTURE` of a Python file."""
    table = getattr(plugin.load(file), "ARCHITECTURE", None)
    if not isinstance(table, Architecture):
        raise FormatError(f"{file} defines no ARCHITECTURE = Architecture(...)", file)
    return table


def architecture_of(model: PreTrainedModel) -> Architecture:
    """Return the table of a model."""
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    if not isinstance(model_type, str):
        raise UnsupportedError(
            f"{type(model).__name__} is not a transformers model: it has no config.model_type"
        )
    known = architectures()
    if model_type not in known:
        more = "To add it, see docs/add-an-architecture.md."
        raise UnknownNameError("model type", model_type, sorted(known), more=more)
    return known[model_type]


def evaluate_formula(text: str, config: Any) -> int:
    """Return the value of a formula over the entries of a config."""
    return formula(text, {name: getattr(config, name) or 0 for name in re.findall(r"[a-z]\w*", text)})


def formula(text: str, values: Mapping[str, int]) -> int:
    """Evaluate `u*d`, `num_hidden_layers/num_hidden_groups` or `pad_token_id+1` over named numbers."""
    total = 0
    for term in text.split("+"):
        result = 1
        for sign, name in re.findall(r"([*/]?)(\w+)", term):
            value = int(name) if name.isdigit() else values[name]
            result = result // value if sign == "/" else result * value
        total += result
    return total


def position_limit(model: PreTrainedModel) -> int | None:
    """Return how many tokens the model has positions for, or None if its config gives no limit."""
    config = model.config.get_text_config()
    rows = getattr(config, "max_position_embeddings", None)
    if not rows:
        return None
    table = architectures().get(config.model_type)
    offset = table.position_offset.get(config.model_type, "0") if table else "0"
    return int(rows) - evaluate_formula(offset, config)
