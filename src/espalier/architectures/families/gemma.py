"""Gemma 2 and 3: Llama's layout, with a norm before and one after every sublayer."""

from ..table import Architecture, HeadSpec
from .llama import GROUPED, QK_NORMS, network

SIZES = {"num_key_value_heads": 3, "head_dim": 8, "sliding_window": 4}

ARCHITECTURE = Architecture(
    models=("gemma2", "gemma3_text"),
    layers="layers",
    specs=(
        HeadSpec(
            at="self_attn",
            g="num_key_value_groups",
            out=".o_proj",
            config=GROUPED,
            private=("input_layernorm", *QK_NORMS, "+post_attention_layernorm"),
        ),
        network("pre_feedforward_layernorm", "+post_feedforward_layernorm"),
    ),
    tiny={"gemma2": SIZES, "gemma3_text": SIZES},
)
