"""OLMo 2: Llama's layout, but q and k are normalised over all heads together."""

from ..table import Architecture, HeadSpec
from .llama import QK_NORMS, network

ARCHITECTURE = Architecture(
    models=("olmo2",),
    layers="layers",
    specs=(
        HeadSpec(
            at="self_attn",
            g="num_key_value_groups",
            out=".o_proj",
            uncuttable="q_norm and k_norm take the mean over all heads of a layer, "
            "so removing one head would change the others",
            private=(*QK_NORMS, "+post_attention_layernorm"),
        ),
        network("+post_feedforward_layernorm"),
    ),
    tiny={"olmo2": {"num_key_value_heads": 3}},
)
