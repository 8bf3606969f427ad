"""GPT-NeoX and Pythia: q, k and v interleaved, head by head."""

from ..table import Architecture, heads, neurons

ARCHITECTURE = Architecture(
    models=("gpt_neox",),
    layers="layers",
    parts=(
        heads(
            at="attention",
            d="head_size",
            qkv=(".query_key_value", "(u [q k v] d) m"),
            out=".dense",
        ),
        neurons(up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h", config="intermediate_size"),
    ),
)
