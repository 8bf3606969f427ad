"""DeBERTa-v2 and v3: further q and k may read the relative positions."""

from ..table import Architecture, NeuronSpec
from .bert import attention

ARCHITECTURE = Architecture(
    models=("deberta-v2",),
    layers="encoder.layer",
    specs=(
        attention(
            at="attention.self",
            q=".query_proj",
            k=".key_proj",
            v=".value_proj",
            pos_k=".pos_key_proj?",
            pos_q=".pos_query_proj?",
            out="attention.output.dense",
        ),
        NeuronSpec(up="intermediate.dense", down="output.dense", config="intermediate_size"),
    ),
    tiny={
        "deberta-v2": {
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "max_relative_positions": 16,
            "position_buckets": 8,
            "norm_rel_ebd": "layer_norm",
        }
    },
    fixed={"conv_kernel_size": "a convolution follows the first block"},
    about={"deberta-v2": "MACs leave out the relative-position terms"},
)
