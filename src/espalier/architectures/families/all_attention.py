"""All-attention of espalier.models: relative positions, and persistent vectors in place of a network.

The biases of `k_proj` and `r_proj` are the vectors that Transformer-XL adds to its queries.
"""

from typing import Any

from ..table import Architecture, HeadSpec, SlotSpec

ROLES: Any = {"q": ".q_proj", "k": ".k_proj", "v": ".v_proj", "r": ".r_proj", "out": ".o_proj"}
SIZES = {"mem_length": 8, "cutoffs": [20, 40], "div_value": 2}

ARCHITECTURE = Architecture(
    models=("all_attention",),
    layers="layers",
    specs=(
        HeadSpec(
            at="attention",
            slot_k=".slot_keys",
            slot_v=".slot_values",
            vectors=("slot_k", "slot_v"),
            products=3,
            private=("norm",),
            **ROLES,
        ),
        SlotSpec(keys="attention.slot_keys", values="attention.slot_values"),
    ),
    about={"all_attention": "its persistent vectors are a target of their own: slots"},
    tiny={"all_attention": {**SIZES, "num_slots": 20}},
)
