"""MPNet: the encoder hands every layer one position bias with a slice per head."""

from ..table import Architecture, heads, neurons

ARCHITECTURE = Architecture(
    models=("mpnet",),
    layers="encoder.layer",
    parts=(
        heads(
            at="attention.attn",
            d="attention_head_size",
            q=".q",
            k=".k",
            v=".v",
            out=".o",
            sync={"num_attention_heads": "u", "all_head_size": "u*d"},
            follow="position_bias",
        ),
        neurons(up="intermediate.dense", down="output.dense", config="intermediate_size"),
    ),
)
