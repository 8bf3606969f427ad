"""MPNet: the encoder passes one position bias with a slice per head to every layer."""

from ..table import Architecture, HeadSpec, NeuronSpec

ARCHITECTURE = Architecture(
    models=("mpnet",),
    layers="encoder.layer",
    specs=(
        HeadSpec(
            at="attention.attn",
            d="attention_head_size",
            q=".q",
            k=".k",
            v=".v",
            out=".o",
            sync={"num_attention_heads": "u", "all_head_size": "u*d"},
            follow="position_bias",
        ),
        NeuronSpec(up="intermediate.dense", down="output.dense", config="intermediate_size"),
    ),
    position_offset={"mpnet": "2"},
)
