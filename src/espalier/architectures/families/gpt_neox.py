"""GPT-NeoX and Pythia: q, k and v interleaved, head by head."""

from ..table import Architecture, HeadSpec, NeuronSpec

ARCHITECTURE = Architecture(
    models=("gpt_neox",),
    layers="layers",
    specs=(
        HeadSpec(
            at="attention",
            d="head_size",
            qkv=(".query_key_value", "(u [q k v] d) m"),
            out=".dense",
            private=("input_layernorm",),
        ),
        NeuronSpec(
            up="mlp.dense_h_to_4h",
            down="mlp.dense_4h_to_h",
            config="intermediate_size",
            private=("post_attention_layernorm",),
        ),
    ),
)
