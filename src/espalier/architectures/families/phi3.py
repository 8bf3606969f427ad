"""Phi 3: q, k and v of different sizes in one matrix, and heads counted by the config."""

from ..table import Architecture, HeadSpec, NeuronSpec
from .llama import GROUPED

ARCHITECTURE = Architecture(
    models=("phi3",),
    layers="layers",
    specs=(
        HeadSpec(
            at="self_attn",
            g="num_key_value_groups",
            qkv=(".qkv_proj", "(q: u g d + k: u d + v: u d) m"),
            out=".o_proj",
            sync={"config.num_attention_heads": "u*g", "num_key_value_heads": "u"},
            config=GROUPED,
            private=("input_layernorm",),
        ),
        NeuronSpec(
            gate_up=("mlp.gate_up_proj", "([gate up] u) m"),
            down="mlp.down_proj",
            config="intermediate_size",
            private=("post_attention_layernorm",),
        ),
    ),
    tiny={"phi3": {"num_key_value_heads": 3}},
)
