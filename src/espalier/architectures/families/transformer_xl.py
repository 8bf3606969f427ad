"""Transformer-XL of espalier.models: the attention of All-attention, and a feed-forward network."""

from ..table import Architecture, HeadSpec, NeuronSpec
from .all_attention import ROLES, SIZES

ARCHITECTURE = Architecture(
    models=("transformer_xl",),
    layers="layers",
    specs=(
        HeadSpec(at="attention", products=3, private=("norm",), **ROLES),
        NeuronSpec(
            up="feed_forward.up",
            down="feed_forward.down",
            config="intermediate_size",
            private=("feed_forward.norm",),
        ),
    ),
    tiny={"transformer_xl": SIZES},
)
